"""Elements moved into memory of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.kernels.loops.base import BITS, LoopKernel, Writer, are_vectors, in_vectors, reader
from ostinato.devices.cpu.kernels.loops.nest import Extents, Nest, Run, amount, nest
from ostinato.devices.cpu.views import View, plus, times
from ostinato.ir.dtype import DType
from ostinato.ir.ops import movement


def copy_run(
    f: Function, nest: Nest, extents: Extents, run: Run, source: Value, target: Value, dtype: DType
) -> None:
    """Copy a run of the nest's first operand, in the buffer `source`, to the last, in `target`."""
    type = BITS[dtype]
    steps = (nest.steps[0], nest.steps[-1])
    read, write = (step if isinstance(step, int) else amount(f, extents, step) for step in steps)
    elements = reader(f, source, run.offsets[0], type, read)
    out = Writer(f, f.at(target, run.offsets[-1] * type.nbytes), write)
    if are_vectors(*steps):
        for i, count in in_vectors(f, run.count):
            out.vector(elements.vector(i, count), i, count)
    else:
        for i, _ in f.range(0, run.count):
            out.one(elements.one(i), i)


@dataclass(frozen=True)
class CopyElements(LoopKernel):
    """The operand's elements, in its order, as the output's, in its own; both have one shape."""

    @cached_property
    def nest(self) -> Nest:
        return nest([self.inputs[0], self.output])

    def body(self, f: Function, args: dict[str, Value]) -> None:
        extents = self.extents(f, args)
        for run in self.nest.runs(f, extents, f["low"], f["high"]):
            copy_run(f, self.nest, extents, run, args["in0"], args["out"], self.output.dtype)


@dataclass(frozen=True)
class Join(LoopKernel):
    """Concat: the items are those of each operand's copy in turn."""

    @cached_property
    def nest(self) -> Nest:
        base = sum(one.work[0] for one in self._nests)
        _, symbol, divisor = nest([self.output]).work
        return Nest(self._nests[0].axes, self._nests[0].offsets, (base, symbol, divisor))

    @cached_property
    def _nests(self) -> tuple[Nest, ...]:
        _, symbol, divisor = nest([self.output]).work
        divided = None if symbol is None else (symbol, divisor)
        return tuple(
            nest([view, part], divided=divided) for view, part in zip(self.inputs, self._parts(), strict=True)
        )

    def _parts(self) -> Iterator[View]:
        """Where each operand lies in the output."""
        assert isinstance(self.op, movement.Concat)
        axis = self.op.axis % len(self.output.shape)
        start = 0
        for view in self.inputs:
            extent = view.shape[axis]
            assert isinstance(extent, int)
            offset = plus(self.output.offset, times(start, self.output.strides[axis]))
            assert offset is not None, "an offset that no view can have"
            yield replace(self.output, offset=offset, shape=view.shape)
            start += extent

    def body(self, f: Function, args: dict[str, Value]) -> None:
        extents = self.extents(f, args)
        _, symbol, divisor = self.work()
        each = f.index(1) if symbol is None else (extents[symbol] + (divisor - 1)) // divisor
        bases = [one.work[0] for one in self._nests]
        for at, (one, start) in enumerate(zip(self._nests, accumulate(bases, initial=0), strict=False)):
            first, count = each * start, each * bases[at]
            low, high = ((item - first).max(0).min(count) for item in (f["low"], f["high"]))
            for run in one.runs(f, extents, low, high):
                copy_run(f, one, extents, run, args[f"in{at}"], args["out"], self.output.dtype)
