"""Loops over the elements of a shape, with an offset for each operand, divided into work items.

Neighbouring axes that every operand steps through as one become one. Then each axis is divided into blocks,
the innermost first, until an item has about GRAIN elements; an item is one block of each axis. Of the axes
with a symbolic extent, the first is divided, so that the number of items grows with that symbol; others lie
whole in each item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import LANES
from ostinato.devices.cpu.views import Stride, View, number_of, symbols_of, times
from ostinato.ir.symbols import SymId

GRAIN = 4096
"""Elements of an item, about: enough that finding its place costs nothing beside them."""

Extents = Mapping[SymId, Value]
"""The symbols' values in the function being written, as i64."""


@dataclass(frozen=True, slots=True)
class Axis:
    """`block`: entries that an item has of it, 0 for all of them."""

    extent: Stride
    strides: tuple[Stride, ...]
    block: int = 0

    @property
    def symbolic(self) -> bool:
        return not isinstance(self.extent, int)


@dataclass(frozen=True, slots=True)
class Run:
    """A part of the innermost axis: element i of operand j is number offsets[j] + i·steps[j] there."""

    count: Value | int
    offsets: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Nest:
    """`axes`, outermost first and at least one, over operands that begin at `offsets`.

    `work`: (base, symbol, divisor) for base · ceil(symbol/divisor) items, or base where there is no symbol.
    """

    axes: tuple[Axis, ...]
    offsets: tuple[Stride, ...]
    work: tuple[int, SymId | None, int]

    @property
    def steps(self) -> tuple[Stride, ...]:
        """The operands' strides along a run."""
        return self.axes[-1].strides

    def runs(self, f: Function, extents: Extents, low: Value, high: Value) -> Iterator[Run]:
        """Write the loops over the items low … high - 1; their body is what the caller writes for a run."""
        if any(axis.extent == 0 for axis in self.axes):
            return
        base = tuple(amount(f, extents, offset) for offset in self.offsets)
        for item, _ in f.range(low, high):
            yield from self._loops(f, extents, self._spans(f, extents, item), base)

    def _spans(self, f: Function, extents: Extents, item: Value) -> list[tuple[Value, Value | int]]:
        """(first entry, entries) of each axis in the item."""
        spans: list[tuple[Value, Value | int]] = []
        divided = [axis for axis in self.axes if axis.block]
        rest = item
        for axis in reversed(self.axes):
            extent = axis.extent if isinstance(axis.extent, int) else amount(f, extents, axis.extent)
            if not axis.block:
                spans.append((f.index(0), extent))
                continue
            blocks = (f.index(extent) + (axis.block - 1)) // axis.block
            number = rest if axis is divided[0] else rest % blocks
            rest = rest // blocks
            start = number * axis.block
            count: Value | int = axis.block
            if not isinstance(extent, int) or extent % axis.block:
                count = (f.index(extent) - start).min(axis.block)
            spans.append((start, count))
        return spans[::-1]

    def _loops(
        self,
        f: Function,
        extents: Extents,
        spans: Sequence[tuple[Value, Value | int]],
        offsets: tuple[Value, ...],
    ) -> Iterator[Run]:
        strides = self.axes[-len(spans)].strides
        start, count = spans[0]

        def moved(by: Value) -> tuple[Value, ...]:
            return tuple(
                offset + by * amount(f, extents, stride) if stride != 0 else offset
                for offset, stride in zip(offsets, strides, strict=True)
            )

        if len(spans) == 1:
            yield Run(count, moved(start))
            return
        if count == 1:
            yield from self._loops(f, extents, spans[1:], moved(start))
            return
        for i, _ in f.range(start, start + count):
            yield from self._loops(f, extents, spans[1:], moved(i))


def amount(f: Function, extents: Extents, stride: Stride) -> Value:
    """The number in the function being written."""
    value = f.index(number_of(stride))
    for symbol in symbols_of(stride):
        value = value * extents[symbol]
    return value


def nest(views: Sequence[View], cost: int = 1, divided: tuple[SymId, int] | None = None) -> Nest:
    """The loops over views of one shape; `cost` elements of work are behind each of theirs.

    `divided`: a symbol, and how many of its values an item has, where nests must agree on that.
    """
    merged = _merged(views)
    symbol, divisor = divided or (_first_symbol(views), 0)
    growing = next((at for at, axis in enumerate(merged) if symbol in symbols_of(axis.extent)), None)
    budget = max(1, GRAIN // max(1, cost))
    base = 1
    for at in reversed(range(len(merged))):
        axis, entries = merged[at], number_of(merged[at].extent)
        block = 0
        if at == growing:
            divisor = divisor or max(1, budget // entries)
            block = entries * divisor
            budget = 1
        elif not axis.symbolic:
            if entries > budget:
                block = _even_block(entries, budget)
                base *= -(-entries // block)
            budget = max(1, budget // max(1, block or entries))
        merged[at] = replace(axis, block=block)
    if any(axis.extent == 0 for axis in merged):
        base = 0
    return Nest(tuple(merged), tuple(view.offset for view in views), (base, symbol, divisor or 1))


def _first_symbol(views: Sequence[View]) -> SymId | None:
    return next((extent for extent in views[0].shape if isinstance(extent, SymId)), None)


def _even_block(entries: int, most: int) -> int:
    """A block of at most about `most` entries such that all blocks are about as large, in whole vectors."""
    block = -(-entries // -(-entries // most))
    return block if block < LANES else -(-block // LANES) * LANES


def _merged(views: Sequence[View]) -> list[Axis]:
    """The axes of the views without those of one entry, neighbours taken together."""
    axes: list[Axis] = []
    for at, dim in enumerate(views[0].shape):
        if dim == 1:
            continue
        axis = Axis(times(dim), tuple(view.strides[at] for view in views))
        if axes and _as_one(axes[-1], axis):
            outer = axes.pop()
            axis = Axis(times(outer.extent, axis.extent), axis.strides)
        axes.append(axis)
    return axes or [Axis(1, (0,) * len(views))]


def _as_one(outer: Axis, inner: Axis) -> bool:
    """Whether every operand steps through both as through one axis, of which items can still be small."""
    if any(a != times(inner.extent, b) for a, b in zip(outer.strides, inner.strides, strict=True)):
        return False
    if outer.symbolic and inner.symbolic:
        return False
    entries = prod(number_of(axis.extent) for axis in (outer, inner))
    return not (outer.symbolic or inner.symbolic) or entries <= GRAIN
