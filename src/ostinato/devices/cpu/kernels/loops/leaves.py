"""Values that come of no operand: numbers, symbols' values, 0 … n-1."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I64, LANES
from ostinato.devices.cpu.kernels.loops.base import STORED, LoopKernel, in_vectors
from ostinato.devices.cpu.kernels.loops.errors import report
from ostinato.devices.cpu.kernels.loops.nest import Nest, amount, nest
from ostinato.devices.cpu.views import View
from ostinato.ir.dtype import DType
from ostinato.ir.ops.const import Iota, Scalar, SymbolValue
from ostinato.ir.shape import Operand
from ostinato.ir.symbols import SymId


@dataclass(frozen=True)
class Fill(LoopKernel):
    """Scalar and SymbolValue: one number."""

    @cached_property
    def nest(self) -> Nest:
        return nest([self.output])

    @property
    def symbols(self) -> tuple[SymId, ...]:
        own = (self.op.symbol,) if isinstance(self.op, SymbolValue) else ()
        return tuple(sorted({*super().symbols, *own}, key=str))

    def body(self, f: Function, args: dict[str, Value]) -> None:
        extents = self.extents(f, args)
        for run in self.nest.runs(f, extents, f["low"], f["high"]):
            if isinstance(self.op, SymbolValue):
                value = extents[self.op.symbol]
            else:
                value = f.const(STORED[self.output.dtype], self._number())
            f.store(value, args["out"], run.offsets[0] * value.type.nbytes)

    def _number(self) -> float:
        """The number as the type has it, half floats as bits."""
        assert isinstance(self.op, Scalar)
        with np.errstate(over="ignore"):
            stored = np.asarray(self.op.value, self.op.dtype.numpy)
        if self.op.dtype is DType.F16:
            stored = stored.view(np.int16)
        return float(stored) if stored.dtype.kind == "f" else int(stored)


@dataclass(frozen=True)
class Count(LoopKernel):
    """Iota: 0, 1, … as i64."""

    @cached_property
    def nest(self) -> Nest:
        position = View(0, self.output.shape, (1,), DType.I64)
        return nest([position, self.output])

    def body(self, f: Function, args: dict[str, Value]) -> None:
        extents = self.extents(f, args)
        step = amount(f, extents, self.nest.steps[1])
        for run in self.nest.runs(f, extents, f["low"], f["high"]):
            first, offset = run.offsets
            if self.nest.steps[1] == 1:
                _count(f, first, f.at(args["out"], offset * 8), run.count)
            else:
                for i, _ in f.range(0, run.count):
                    f.store(first + i, args["out"], (offset + i * step) * 8)


@dataclass(frozen=True)
class CountGiven(LoopKernel):
    """Iota of an extent that is the operand's value: `[n]`, written where the output has room for it.

    `bound`: the elements there is room for. An extent outside 0 … `bound` is an error and writes none.
    """

    bound: int

    @property
    def params(self) -> tuple[str, ...]:
        return (*super().params, "error", "code_n")

    @cached_property
    def nest(self) -> Nest:
        return nest([self.inputs[0]])

    def body(self, f: Function, args: dict[str, Value]) -> None:
        extents = self.extents(f, args)
        offset = amount(f, extents, self.output.offset)
        for run in self.nest.runs(f, extents, f["low"], f["high"]):
            n = f.load(I64, args["in0"], run.offsets[0] * 8)
            fits = n.below(self.bound + 1)
            report(f, args, fits, n, f.index(self.bound))
            _count(f, f.index(0), f.at(args["out"], offset * 8), fits.select(n, 0))


def _count(f: Function, first: Value, out: Value, count: Value | int) -> None:
    lanes = f.vector(I64.x(LANES), range(LANES))
    for i, part in in_vectors(f, count):
        f.store_part(f.broadcast(first + i) + lanes, out, i * 8, part)


def iota(op: Iota, inputs: tuple[View, ...], output: View, bound: int | None) -> LoopKernel | None:
    """The kernel of an Iota; None for one whose extent is an operand without a `bound`."""
    if not isinstance(op.extent, Operand):
        return Count(op, inputs, output)
    if bound is None or output.strides != (1,):
        return None
    return CountGiven(op, inputs, output, bound)
