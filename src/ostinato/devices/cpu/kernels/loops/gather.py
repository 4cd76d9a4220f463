"""Rows of a table by their numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I64
from ostinato.devices.cpu.kernels.loops.base import BITS, LoopKernel
from ostinato.devices.cpu.kernels.loops.copy import copy_run
from ostinato.devices.cpu.kernels.loops.errors import report
from ostinato.devices.cpu.kernels.loops.nest import Extents, Nest, Run, amount, nest
from ostinato.devices.cpu.views import View, times


@dataclass(frozen=True)
class GatherRows(LoopKernel):
    """Row `in1[i]` of `in0` as row i. An index outside the table is an error, and row 0 is taken instead."""

    @property
    def params(self) -> tuple[str, ...]:
        return (*super().params, "error", "code_n")

    @cached_property
    def nest(self) -> Nest:
        table, index = self.inputs
        shape = self.output.shape
        rows = replace(table, shape=shape, strides=(0, *table.strides[1:]))
        chosen = View(index.offset, shape, (index.strides[0], *(0,) * (len(shape) - 1)), index.dtype)
        return nest([rows, chosen, self.output])

    def body(self, f: Function, args: dict[str, Value]) -> None:
        table = self.inputs[0]
        extents = self.extents(f, args)
        size = amount(f, extents, times(table.shape[0]))
        stride = amount(f, extents, table.strides[0])

        def row(index_at: Value) -> Value:
            """The offset of the row that the index at that offset names."""
            index = f.load(I64, args["in1"], index_at * 8)
            fine = index.below(size)
            report(f, args, fine, index, size)
            return fine.select(index, 0) * stride

        for run in self.nest.runs(f, extents, f["low"], f["high"]):
            if self.nest.steps[1] == 0:  # within a row
                start = row(run.offsets[1])
                for _ in f.when(size.gt(0)):  # without rows, not even row 0 is there
                    self._copy(
                        f, args, extents, replace(run, offsets=(run.offsets[0] + start, *run.offsets[1:]))
                    )
            else:
                self._pick(f, args, extents, run, row)

    def _copy(self, f: Function, args: dict[str, Value], extents: Extents, run: Run) -> None:
        copy_run(f, self.nest, extents, run, args["in0"], args["out"], self.output.dtype)

    def _pick(
        self, f: Function, args: dict[str, Value], extents: Extents, run: Run, row: Callable[[Value], Value]
    ) -> None:
        """A run over rows of one element each."""
        type = BITS[self.output.dtype]
        inside, index_step, out_step = (amount(f, extents, step) for step in self.nest.steps)
        for i, _ in f.range(0, run.count):
            source = run.offsets[0] + i * inside + row(run.offsets[1] + i * index_step)
            for _ in f.when(amount(f, extents, times(self.inputs[0].shape[0])).gt(0)):
                value = f.load(type, args["in0"], source * type.nbytes)
                f.store(value, args["out"], (run.offsets[2] + i * out_step) * type.nbytes)
