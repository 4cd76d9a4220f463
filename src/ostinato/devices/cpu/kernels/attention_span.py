"""Attention of a few query vectors over one span of a KV head: the part that all attention kernels share.

A *span* is `SPAN` positions, aligned to absolute position. For each of its query vectors it leaves, in a
record, the largest score m, the sum of 2^(score - m), and the values summed with these weights; scores are in
powers of two. What a vector's record holds depends on nothing but the vector, the slabs and the positions
that it attends: every score is one chain of fma over the elements of K, every sum goes from lower to higher
positions. How many vectors are computed side by side is a matter of registers, and changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Carried, Function, Value
from ostinato.devices.cpu.emit.types import F32, F32V, I16, I32, I64, LANES
from ostinato.devices.cpu.kernels.halves import widen
from ostinato.devices.cpu.kernels.math import exp2
from ostinato.devices.cpu.slabs import BLOCK, SlabGeometry
from ostinato.ir.dtype import DType

SPAN = 128
"""Positions of a span; a multiple of a K block's."""

LOG2_E = 1.4426950408889634
LOWEST = -3.4028234663852886e38
"""The least finite float32: the largest score of no scores, so that -inf less it is -inf."""

_UNROLL = 4


@dataclass(frozen=True)
class SpanShape:
    """`rows` query rows of `group` heads each: vector n is head n % group of row n // group.

    A record is `[vectors][width]` float32 of summed values, then the largest scores and the sums of weights,
    each `[vectors rounded up to 16]`.
    """

    rows: int
    group: int
    k: SlabGeometry
    v: SlabGeometry
    windowed: bool
    masked: bool

    @property
    def vectors(self) -> int:
        return self.rows * self.group

    @property
    def lanes(self) -> int:
        """Vectors, rounded up to whole machine vectors."""
        return -(-self.vectors // LANES) * LANES

    @property
    def columns(self) -> int:
        """Machine vectors of a V row."""
        return self.v.width // LANES

    @property
    def q_pitch(self) -> int:
        """Bytes from one query vector to the next."""
        return -(-self.k.dim // LANES) * LANES * 4

    @property
    def values_bytes(self) -> int:
        return self.vectors * self.v.width * 4

    @property
    def record_bytes(self) -> int:
        return self.values_bytes + 2 * self.lanes * 4


@dataclass(frozen=True)
class Attended:
    """What one row attends: positions low … high - 1, of them those that its mask row, if any, leaves."""

    low: Value
    high: Value
    mask: Value | None = None

    def within(self, f: Function, first: Value) -> Attended:
        """Its part of the span that starts at `first`; empty ranges stay ranges."""
        low = self.low.max(first).min(first + SPAN)
        return Attended(low, self.high.min(first + SPAN).max(low), self.mask)


def spans_of(row: Attended) -> tuple[Value, Value]:
    """The first span in which a row attends something, and the one after the last."""
    past = (row.high + (SPAN - 1)) // SPAN
    return row.low // SPAN, row.low.lt(row.high).select(past, 0)


@dataclass(frozen=True)
class SpanMemory:
    """Addresses: the query vectors `[vectors][q_pitch]`, weights `[vectors][SPAN]`, a row of V zeros, the KV
    head's K and V, and the record to write."""

    q: Value
    weights: Value
    zeros: Value
    k: Value
    v: Value
    record: Value


def attend_span(
    f: Function, shape: SpanShape, memory: SpanMemory, first: Value, rows: Sequence[Attended]
) -> None:
    """The record of the span that starts at position `first`; later rows attend nothing earlier, nor end
    earlier, than those before them."""
    rows = [row.within(f, first) for row in rows]
    blocks = (rows[0].low >> 5, (rows[-1].high + (BLOCK - 1)) >> 5)
    _scores(f, shape, memory, first, rows, blocks)
    _weights(f, shape, memory, first, blocks)
    _values(f, shape, memory, first, rows)


def budget(f: Function) -> int:
    """Machine vectors that sums can be held in, beside what is loaded."""
    requires = f.module.isa.requires
    return 24 if "avx512f" in requires else 6 if "avx2" in requires else 3


def groups(count: int, most: int) -> Iterator[tuple[int, int]]:
    """`count` things in groups of nearly equal size, `most` at most: (first, size)."""
    parts = -(-count // max(1, most))
    size = -(-count // parts)
    for first in range(0, count, size):
        yield first, min(size, count - first)


# scores


def attended_lanes(f: Function, row: Attended, first: Value) -> Value:
    """Which of the sixteen positions from `first` on the row attends; unsigned, so one comparison."""
    skipped = f.broadcast((first - row.low).cast("trunc", I32))
    count = f.broadcast((row.high - row.low).cast("trunc", I32))
    return (f.iota() + skipped).below(count)


def _scores(
    f: Function,
    shape: SpanShape,
    memory: SpanMemory,
    first: Value,
    rows: Sequence[Attended],
    blocks: tuple[Value, Value],
) -> None:
    """Scores where a vector attends and -inf elsewhere, to its weights; the largest to the record."""
    for begin, size in groups(shape.vectors, min(8, budget(f) // 2)):
        members = range(begin, begin + size)
        largest = {f"m{n}": f.const(F32V, LOWEST) for n in members}
        for block, s in f.range(blocks[0], blocks[1], 1, **largest):
            sums = _products(f, shape, memory, block, members)
            position = block << 5
            target = f.at(memory.weights, (position - first) << 2)
            for j in range(BLOCK // LANES):
                lanes: dict[int, tuple[Value, Value | None]] = {}
                for n in members:
                    at = n // shape.group
                    if at not in lanes:
                        lanes[at] = _lanes(f, rows[at], position + j * LANES)
                    attended, term = lanes[at]
                    score = sums[n][j] if term is None else sums[n][j] + term
                    score = attended.select(score, -float("inf"))
                    f.store(score, target, n * SPAN * 4 + j * LANES * 4)
                    s[f"m{n}"] = score.max(s[f"m{n}"])
        for n in members:
            f.store(f.max(s[f"m{n}"]), memory.record, shape.values_bytes + 4 * n)


def _lanes(f: Function, row: Attended, first: Value) -> tuple[Value, Value | None]:
    """Which positions are attended, and what the mask adds to their scores."""
    attended = attended_lanes(f, row, first)
    if row.mask is None:
        return attended, None
    count = (row.high - first).max(0).min(LANES)
    mask = f.load_part(F32V, row.mask, first << 2, count)
    attended = attended & mask.gt(-float("inf"))
    # -inf takes a position away; the lowest finite numbers only make it as unlikely as can be.
    return attended, (mask * LOG2_E).max(LOWEST)


def _products(
    f: Function, shape: SpanShape, memory: SpanMemory, block: Value, members: range
) -> dict[int, list[Value]]:
    """q · K of a block's positions for some vectors: two machine vectors each."""
    k = f.at(memory.k, block * shape.k.block_bytes)
    halves = range(BLOCK // LANES)
    sums = {f"s{n}_{j}": f.zero(F32V) for n in members for j in halves}
    row = BLOCK * shape.k.element

    def step(s: Carried, d: Value, e: int) -> None:
        keys = [load_stored(f, shape.k, k, d * row + (e * row + j * LANES * shape.k.element)) for j in halves]
        for n in members:
            q = f.broadcast(f.load(F32, memory.q, d * 4 + (n * shape.q_pitch + 4 * e)))
            for j in halves:
                s[f"s{n}_{j}"] = f.fma(q, keys[j], s[f"s{n}_{j}"])

    state = _unrolled(f, f.const(I64, 0), f.const(I64, shape.k.dim), sums, step)
    return {n: [state[f"s{n}_{j}"] for j in halves] for n in members}


def _unrolled(
    f: Function,
    low: Value,
    high: Value,
    carried: dict[str, Value],
    step: Callable[[Carried, Value, int], None],
) -> Carried:
    """`step(state, i, e)` for i + e from `low` to `high` - 1, a few a turn; `high` isn't below `low`."""
    whole = low + ((high - low) & -_UNROLL)
    state = Carried(carried)
    for begin, end, turn in ((low, whole, _UNROLL), (whole, high, 1)):
        for i, state in f.range(begin, end, turn, **{name: state[name] for name in carried}):
            for e in range(turn):
                step(state, i, e)
    return state


def load_stored(f: Function, slab: SlabGeometry, pointer: Value, offset: Value | int) -> Value:
    """Sixteen stored numbers as float32."""
    if slab.dtype is DType.F16:
        return widen(f, f.load(I16.x(LANES), pointer, offset))
    return f.load(F32V, pointer, offset)


# weights and values


def _weights(
    f: Function, shape: SpanShape, memory: SpanMemory, first: Value, blocks: tuple[Value, Value]
) -> None:
    """Scores become 2^(score - m); their sums go to the record. What isn't attended weighs 0."""
    begin, end = ((block << 5) - first for block in blocks)
    for n, _ in f.range(0, shape.vectors):
        largest = f.broadcast(f.load(F32, memory.record, n * 4 + shape.values_bytes))
        weights = f.at(memory.weights, n * (SPAN * 4))
        for at, s in f.range(begin, end, BLOCK, total=f.zero(F32V)):
            for j in range(BLOCK // LANES):
                here = (at << 2) + j * LANES * 4
                weight = exp2(f, f.load(F32V, weights, here) - largest)
                f.store(weight, weights, here)
                s.total = s.total + weight
        f.store(f.sum(s.total), memory.record, n * 4 + (shape.values_bytes + shape.lanes * 4))


def _values(
    f: Function, shape: SpanShape, memory: SpanMemory, first: Value, rows: Sequence[Attended]
) -> None:
    """The weighted sums of V rows, position by position, to the record."""
    most = budget(f)
    for column, width in groups(shape.columns, min(4, most)):
        for begin, size in groups(shape.vectors, most // width):
            _value_sums(
                f, shape, memory, first, rows, range(begin, begin + size), range(column, column + width)
            )


def _value_sums(
    f: Function,
    shape: SpanShape,
    memory: SpanMemory,
    first: Value,
    rows: Sequence[Attended],
    vectors: range,
    columns: range,
) -> None:
    """A tile of the sums. V is read only where a row attends: its other cells may hold anything."""
    sums = {f"a{n}_{c}": f.zero(F32V) for n in vectors for c in columns}
    row_bytes = shape.v.width * shape.v.element
    numbers = range(vectors[0] // shape.group, vectors[-1] // shape.group + 1)

    def add(members: Sequence[int], mask: Value | None) -> Callable[[Carried, Value, int], None]:
        def step(s: Carried, position: Value, e: int) -> None:
            v = f.at(memory.v, position * row_bytes + e * row_bytes)
            if mask is not None:
                attended = f.load(F32, mask, (position << 2) + 4 * e).gt(-float("inf"))
                v = attended.select(v, memory.zeros)
            values = [load_stored(f, shape.v, v, c * LANES * shape.v.element) for c in columns]
            at = f.at(memory.weights, (position - first) << 2)
            for n in members:
                weight = f.broadcast(f.load(F32, at, n * SPAN * 4 + 4 * e))
                for c, value in zip(columns, values, strict=True):
                    s[f"a{n}_{c}"] = f.fma(weight, value, s[f"a{n}_{c}"])

        return step

    def go(members: Sequence[int], low: Value, high: Value, mask: Value | None = None) -> None:
        names = [f"a{n}_{c}" for n in members for c in columns]
        state = _unrolled(f, low, high.max(low), {name: sums[name] for name in names}, add(members, mask))
        sums.update({name: state[name] for name in names})

    if len(numbers) == 1:
        row = rows[numbers[0]]
        go(vectors, row.low, row.high, row.mask)
    else:  # what all rows attend together, what only some do before and after it
        low, high = rows[numbers[-1]].low, rows[numbers[0]].high.max(rows[numbers[-1]].low)
        own = {r: [n for n in vectors if n // shape.group == r] for r in numbers}
        if shape.windowed:
            for r in numbers[:-1]:
                go(own[r], rows[r].low, rows[r].high.min(low))
        go(vectors, low, high)
        for r in numbers[1:]:
            go(own[r], high, rows[r].high)
    for n in vectors:
        for c in columns:
            f.store(sums[f"a{n}_{c}"], memory.record, (n * shape.columns + c) * LANES * 4)
