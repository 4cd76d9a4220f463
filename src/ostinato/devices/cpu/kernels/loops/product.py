"""MatMul over views, with one order of the terms of each sum.

Where the columns of the right operand are neighbours, each element's terms follow one another, sixteen
columns at once; where the terms of both operands are, lane l takes the terms l, l + 16, … and a fixed tree
joins the lanes; otherwise they follow one another, which gives the bits of the first way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32, F32V, LANES, Type
from ostinato.devices.cpu.kernels.loops.base import LoopKernel, in_vectors
from ostinato.devices.cpu.kernels.loops.nest import Nest, amount, nest
from ostinato.devices.cpu.views import View, broadcast_to, number_of, times, without_axis
from ostinato.ir.shape import Dim

TOGETHER = 4
"""Sums at once: one alone would wait for each of its own additions."""


@dataclass(frozen=True)
class MatrixProduct(LoopKernel):
    """`[..., m, k] @ [..., k, n]`, leading axes broadcast."""

    @cached_property
    def nest(self) -> Nest:
        left, right = self.inputs
        *batch, m, n = self.output.shape
        rows = _constant_along(without_axis(_batched(left, batch), -1), -1, n)  # [..., m, n]
        columns = _constant_along(without_axis(_batched(right, batch), -2), -2, m)  # [..., m, n]
        return nest([rows, columns, self.output], cost=number_of(times(left.shape[-1])))

    def body(self, f: Function, args: dict[str, Value]) -> None:
        extents = self.extents(f, args)
        left, right = self.inputs
        terms = amount(f, extents, times(left.shape[-1]))
        along = (left.strides[-1], right.strides[-2])
        strides = [amount(f, extents, stride) for stride in along]
        steps = [amount(f, extents, step) for step in self.nest.steps]
        for run in self.nest.runs(f, extents, f["low"], f["high"]):
            a, b, out = (
                f.at(args[name], offset * 4)
                for name, offset in zip(("in0", "in1", "out"), run.offsets, strict=True)
            )
            if self.nest.steps == (0, 1, 1):
                for i, parts in _vector_groups(f, run.count):
                    sums = _Sums(f, [a], [f.at(b, (i + LANES * t) * 4) for t in range(len(parts))])
                    for t, total in enumerate(sums.of_columns(terms, strides, parts)):
                        f.store_part(total, out, (i + LANES * t) * 4, parts[t])
                continue
            for i, together in _groups(f, run.count):
                sums = _Sums(f, *([f.at(p, (i + t) * step * 4) for t in range(together)]
                                  for p, step in zip((a, b), steps, strict=False)))  # fmt: skip
                totals = sums.by_lanes(terms) if along == (1, 1) else sums.in_turn(terms, strides)
                for t, total in enumerate(totals):
                    f.store(total, out, (i + t) * steps[2] * 4)


@dataclass(frozen=True)
class _Sums:
    """Sums of products, some at once: sum t has its first terms at `left[t]` and `right[t]`."""

    f: Function
    left: Sequence[Value]
    right: Sequence[Value]

    def _start(self, type: Type) -> dict[str, Value]:
        return {f"t{t}": self.f.zero(type) for t in range(len(self.right))}

    def in_turn(self, terms: Value, strides: Sequence[Value]) -> list[Value]:
        """Each term is added to those before it."""
        f = self.f
        for k, s in f.range(0, terms, 1, **self._start(F32)):
            for t, pair in enumerate(zip(self.left, self.right, strict=True)):
                x, y = (f.load(F32, p, k * stride * 4) for p, stride in zip(pair, strides, strict=True))
                s[f"t{t}"] = f.fma(x, y, s[f"t{t}"])
        return [s[name] for name in self._start(F32)]

    def of_columns(self, terms: Value, strides: Sequence[Value], parts: Sequence[Value | int]) -> list[Value]:
        """The same for the `parts[t]` sums in the lanes of sum t, all with the left terms at `left[0]`."""
        f = self.f
        for k, s in f.range(0, terms, 1, **self._start(F32V)):
            x = f.broadcast(f.load(F32, self.left[0], k * strides[0] * 4))
            for t, (column, part) in enumerate(zip(self.right, parts, strict=True)):
                y = f.load_part(F32V, column, k * strides[1] * 4, part)
                s[f"t{t}"] = f.fma(x, y, s[f"t{t}"])
        return [s[name] for name in self._start(F32V)]

    def by_lanes(self, terms: Value) -> list[Value]:
        """Neighbouring terms by lanes, and then the tree."""
        f = self.f
        rest = terms % LANES
        whole = terms - rest
        for k, s in f.range(0, whole, LANES, **self._start(F32V)):
            for t, (a, b) in enumerate(zip(self.left, self.right, strict=True)):
                s[f"t{t}"] = f.fma(f.load(F32V, a, k * 4), f.load(F32V, b, k * 4), s[f"t{t}"])
        totals = []
        for t, (a, b) in enumerate(zip(self.left, self.right, strict=True)):
            x, y = (f.load_part(F32V, p, whole * 4, rest) for p in (a, b))
            totals.append(f.sum(f.fma(x, y, s[f"t{t}"])))
        return totals


def _groups(f: Function, count: Value | int) -> Iterator[tuple[Value, int]]:
    """(first, how many) of 0 … count - 1 in groups, then one by one."""
    whole = f.index(count) // TOGETHER * TOGETHER
    for i, _ in f.range(0, whole, TOGETHER):
        yield i, TOGETHER
    for i, _ in f.range(whole, count):
        yield i, 1


def _vector_groups(f: Function, count: Value | int) -> Iterator[tuple[Value, list[Value | int]]]:
    """(first, lanes of each vector) of 0 … count - 1 in groups of vectors, then vector by vector."""
    wide = LANES * TOGETHER
    rest = count % wide
    whole = f.index(count) - rest
    for i, _ in f.range(0, whole, wide):
        yield i, [LANES] * TOGETHER
    for i, part in in_vectors(f, rest):
        yield whole + i, [part]


def _batched(view: View, batch: Sequence[Dim]) -> View:
    return broadcast_to(view, (*batch, *view.shape[-2:]))


def _constant_along(view: View, axis: int, extent: Dim) -> View:
    """The view with an axis put in, at `axis` of the result, along which nothing changes."""
    at = len(view.shape) + 1 + axis
    return replace(
        view,
        shape=(*view.shape[:at], extent, *view.shape[at:]),
        strides=(*view.strides[:at], 0, *view.strides[at:]),
    )
