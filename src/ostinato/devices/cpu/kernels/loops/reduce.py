"""Reductions over one axis, each with one order of its terms.

Where the axis's elements are neighbours, lane l of a vector takes the elements l, l + 16, …, and a fixed tree
joins the lanes; elsewhere the terms follow one another. Which it is depends on the operand's stride alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32, F32V, I32, LANES
from ostinato.devices.cpu.kernels.loops.base import LoopKernel, Writer, are_vectors, in_vectors, reader
from ostinato.devices.cpu.kernels.loops.nest import Nest, amount, nest
from ostinato.devices.cpu.views import Stride, number_of, times, without_axis
from ostinato.ir.ops import reduce


def _total(a: Value, x: Value) -> Value:
    return a + x


def _largest(a: Value, x: Value) -> Value:
    """The larger one; NaN where either is."""
    return (x.gt(a) | (x.eq(x) ^ 1)).select(x, a)


_JOINED: dict[type, tuple[Callable[[Value, Value], Value], float]] = {
    reduce.Sum: (_total, 0.0),
    reduce.Max: (_largest, -inf),
}
"""How a term joins those before it, and what none are."""


@dataclass(frozen=True)
class Reduce(LoopKernel):
    """Sum and Max: the axis stays with extent 1."""

    @property
    def axis(self) -> int:
        assert isinstance(self.op, reduce.Sum | reduce.Max)
        return self.op.axis % len(self.inputs[0].shape)

    @property
    def along(self) -> tuple[Stride, Stride]:
        """Extent and stride of the axis."""
        view = self.inputs[0]
        return times(view.shape[self.axis]), view.strides[self.axis]

    @cached_property
    def nest(self) -> Nest:
        views = [without_axis(view, self.axis) for view in (self.inputs[0], self.output)]
        return nest(views, cost=number_of(self.along[0]))

    def body(self, f: Function, args: dict[str, Value]) -> None:
        extents = self.extents(f, args)
        terms, stride = (amount(f, extents, value) for value in self.along)
        step, out_step = (amount(f, extents, value) for value in self.nest.steps)
        for run in self.nest.runs(f, extents, f["low"], f["high"]):
            source = f.at(args["in0"], run.offsets[0] * 4)
            out = Writer(f, f.at(args["out"], run.offsets[1] * 4), out_step)
            if self.along[1] == 1:
                for i, _ in f.range(0, run.count):
                    out.one(self._across(f, f.at(source, i * step * 4), terms), i)
            elif are_vectors(*self.nest.steps):
                for i, count in in_vectors(f, run.count):
                    out.vector(self._down(f, source, i, (terms, stride), count), i, count)
            else:
                for i, _ in f.range(0, run.count):
                    out.one(self._down(f, source, i * step, (terms, stride), None), i)

    def _across(self, f: Function, row: Value, terms: Value) -> Value:
        """Neighbouring terms: by lanes, then the tree."""
        join, none = _JOINED[type(self.op)]
        rest = terms % LANES
        whole = terms - rest
        for i, s in f.range(0, whole, LANES, lanes=f.const(F32V, none)):
            s.lanes = join(s.lanes, f.load(F32V, row, i * 4))
        last = f.first_lanes(LANES, rest).select(f.load_part(F32V, row, whole * 4, rest), none)
        lanes = join(s.lanes, last)
        while lanes.type.lanes > 1:
            lanes = join(*f.halves(lanes))
        return f.lane(lanes, 0)

    def _down(
        self, f: Function, source: Value, first: Value, along: tuple[Value, Value], count: Value | int | None
    ) -> Value:
        """Terms one after another, of element `first` or of the `count` from there."""
        join, none = _JOINED[type(self.op)]
        terms, stride = along
        for k, s in f.range(0, terms, total=f.const(F32 if count is None else F32V, none)):
            if count is None:
                term = f.load(F32, source, (k * stride + first) * 4)
            else:
                term = reader(f, source, k * stride, F32, number_of(self.nest.steps[0])).vector(first, count)
            s.total = join(s.total, term)
        return s["total"]


@dataclass(frozen=True)
class LargestIndex(LoopKernel):
    """ArgMax: the lowest index among equals. A NaN is larger than everything else."""

    @cached_property
    def nest(self) -> Nest:
        view = self.inputs[0]
        return nest([without_axis(view, -1), self.output], cost=number_of(times(view.shape[-1])))

    def body(self, f: Function, args: dict[str, Value]) -> None:
        extents = self.extents(f, args)
        terms = amount(f, extents, times(self.inputs[0].shape[-1]))
        stride = amount(f, extents, self.inputs[0].strides[-1])
        step, out_step = (amount(f, extents, value) for value in self.nest.steps)
        for run in self.nest.runs(f, extents, f["low"], f["high"]):
            for i, _ in f.range(0, run.count):
                row = f.at(args["in0"], (run.offsets[0] + i * step) * 4)
                lowest = f.const(I32, -(2**31))
                for k, s in f.range(0, terms, key=lowest, at=f.index(0)):
                    key = _order(f, f.load(F32, row, k * stride * 4))
                    larger = s.key.lt(key)
                    s.at = larger.select(k, s.at)
                    s.key = larger.select(key, s.key)
                f.store(s.at, args["out"], (run.offsets[1] + i * out_step) * 8)


def _order(f: Function, x: Value) -> Value:
    """Integers in the order of the floats: -0 as 0, NaN above all."""
    bits = (x + 0.0).cast("bitcast", I32)
    key = bits.lt(0).select(bits ^ 0x7FFFFFFF, bits)
    return x.eq(x).select(key, 0x7FFFFFFF)
