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
from ostinato.devices.cpu.emit.types import F32, F32V, I8, I16, I32, I64, LANES
from ostinato.devices.cpu.kernels.attention_shape import LOG2_E, LOWEST, SPAN, Attended, SpanShape
from ostinato.devices.cpu.kernels.halves import widen
from ostinato.devices.cpu.kernels.math import exp2
from ostinato.devices.cpu.slabs import BLOCK, SlabGeometry
from ostinato.ir.encoding import F16

_UNROLL = 4
_LINE = 64
_HALF_LINE = 32
_NEAR = 2
"""Ask for memory as far as the second cache: the first one is full of the span at hand."""


@dataclass(frozen=True)
class SpanMemory:
    """Addresses: the query vectors `[vectors][q_pitch]`, weights `[vectors][weights_pitch]`, a row of V
    zeros, the KV head's K and V, and the record to write.

    With `ahead`, the K of the span that comes next, memory is asked for early: for V while scores are
    computed, for the next K while values are summed. So it is read at one pace through both.
    """

    q: Value
    weights: Value
    zeros: Value
    k: Value
    v: Value
    record: Value
    ahead: Value | None = None


def attend_span(
    f: Function, shape: SpanShape, memory: SpanMemory, first: Value, rows: Sequence[Attended]
) -> None:
    """Write the record of the span that starts at position `first`.

    Later rows attend nothing earlier, nor end earlier, than those before them.
    """
    _Span(f, shape, memory, first, [row.within(f, first) for row in rows]).write()


@dataclass(frozen=True)
class _Span:
    """`rows` are what they attend of the span."""

    f: Function
    shape: SpanShape
    memory: SpanMemory
    first: Value
    rows: Sequence[Attended]

    def write(self) -> None:
        blocks = (self.rows[0].low >> 5, (self.rows[-1].high + (BLOCK - 1)) >> 5)
        self._scores(blocks)
        self._weights(blocks)
        self._values()

    def _scores(self, blocks: tuple[Value, Value]) -> None:
        """Scores where a vector attends and -inf elsewhere, to its weights; the largest to the record."""
        f, shape = self.f, self.shape
        for begin, size in groups(shape.vectors, min(8, budget(f) // 2)):
            members = range(begin, begin + size)
            largest = {f"m{n}": f.const(F32V, LOWEST) for n in members}
            for block, s in f.range(blocks[0], blocks[1], 1, **largest):
                sums = self._products(block, members)
                position = block << 5
                target = f.at(self.memory.weights, (position - self.first) << 2)
                for j in range(BLOCK // LANES):
                    lanes: dict[int, tuple[Value, Value | None]] = {}
                    for n in members:
                        row = n // shape.group
                        if row not in lanes:
                            lanes[row] = _lanes(f, self.rows[row], position + j * LANES)
                        attended, term = lanes[row]
                        score = sums[n][j] if term is None else sums[n][j] + term
                        score = attended.select(score, -float("inf"))
                        f.store(score, target, n * shape.weights_pitch + j * LANES * 4)
                        s[f"m{n}"] = score.max(s[f"m{n}"])
            for n in members:
                f.store(f.max(s[f"m{n}"]), self.memory.record, shape.values_bytes + 4 * n)

    def _products(self, block: Value, members: range) -> dict[int, list[Value]]:
        """q · K of a block's positions for some vectors: two machine vectors each."""
        f, memory = self.f, self.memory
        slab, v = self.shape.k, self.shape.v
        k = f.at(memory.k, block * slab.block_bytes)
        halves = range(BLOCK // LANES)
        queries = operands(f, memory.q, len(halves))
        row = BLOCK * slab.element
        early = memory.ahead is not None and members[0] == 0
        share = -(-v.block_bytes // slab.dim // _HALF_LINE) * _HALF_LINE

        def step(s: Carried, d: Value, e: int) -> None:
            if early:
                first = -(-e * share // _LINE) * _LINE
                for line in range(first, (e + 1) * share, _LINE):
                    f.prefetch(memory.v, block * v.block_bytes + d * share + line, _NEAR)
            for j in halves:
                keys = load_stored(f, slab, k, d * row + (e * row + j * LANES * slab.element))
                for n in members:
                    q = f.broadcast(f.load(F32, queries[j], d * 4 + (n * self.shape.q_pitch + 4 * e)))
                    s[f"s{n}_{j}"] = f.fma(q, keys, s[f"s{n}_{j}"])

        names = [f"s{n}_{j}" for n in members for j in halves]

        def products(low: Value, high: Value) -> Carried:
            return _unrolled(f, low, high, {name: f.zero(F32V) for name in names}, step)

        if not slab.quantized:
            state = products(f.const(I64, 0), f.const(I64, slab.dim))
        else:
            state = self._scaled(block, names, products)
        return {n: [state[f"s{n}_{j}"] for j in halves] for n in members}

    def _scaled(
        self, block: Value, names: Sequence[str], products: Callable[[Value, Value], Carried]
    ) -> Carried:
        """The sums of `products` over the elements of each scale, times that."""
        f, slab = self.f, self.shape.k
        scales = f.at(self.memory.k, block * slab.scale_bytes + slab.scales_at)

        def add(s: Carried, part: Value, low: Value, high: Value) -> None:
            found = products(low, high)
            for name in names:
                j = int(name.rpartition("_")[2])
                d = widen(f, f.load(I16.x(LANES), scales, part * (2 * BLOCK) + j * 2 * LANES))
                s[name] = f.fma(found[name], d, s[name])

        whole = slab.dim // BLOCK
        state = Carried({name: f.zero(F32V) for name in names})
        for part, state in f.range(0, whole, 1, **{name: state[name] for name in names}):
            add(state, part, part * BLOCK, part * BLOCK + BLOCK)
        if slab.dim % BLOCK:
            low = f.const(I64, whole * BLOCK)
            add(state, f.const(I64, whole), low, f.const(I64, slab.dim))
        return state

    def _weights(self, blocks: tuple[Value, Value]) -> None:
        """Scores become 2^(score - m); their sums go to the record. What isn't attended weighs 0. Where V has
        scales, each weight becomes several, times these."""
        f, shape, record = self.f, self.shape, self.memory.record
        v = shape.v
        scales = f.at(self.memory.v, (self.first >> 5) * v.scale_bytes + v.scales_at)
        begin, end = ((block << 5) - self.first for block in blocks)
        for n, _ in f.range(0, shape.vectors):
            largest = f.broadcast(f.load(F32, record, n * 4 + shape.values_bytes))
            weights = f.at(self.memory.weights, n * shape.weights_pitch)
            for at, s in f.range(begin, end, BLOCK, total=f.zero(F32V)):
                for j in range(BLOCK // LANES):
                    here = (at << 2) + j * LANES * 4
                    weight = exp2(f, f.load(F32V, weights, here) - largest)
                    s.total = s.total + weight
                    for part in range(v.scales):
                        there = (at >> 5) * v.scale_bytes + (part * 2 * BLOCK + j * 2 * LANES)
                        d = widen(f, f.load(I16.x(LANES), scales, there))
                        f.store(weight * d, weights, here + part * SPAN * 4)
                    if not v.scales:
                        f.store(weight, weights, here)
            f.store(f.sum(s.total), record, n * 4 + (shape.values_bytes + shape.lanes * 4))

    def _values(self) -> None:
        """The weighted sums of V rows, position by position, to the record."""
        most, vectors = budget(self.f), self.shape.vectors
        widest = self.shape.columns
        if widest * vectors > most:  # three vectors that share what is loaded, at least
            widest = min(4, most // min(vectors, 3))
        tiles = [
            (range(begin, begin + size), range(column, column + width))
            for column, width in groups(self.shape.columns, widest)
            for begin, size in groups(vectors, most // width)
        ]
        share = self.shape.k.dim * self.shape.k.element
        lines = range(0, share, _LINE)
        for i, (members, columns) in enumerate(tiles):
            self._value_sums(members, columns, lines[i :: len(tiles)])

    def _value_sums(self, vectors: range, columns: range, lines: range) -> None:
        """A tile of the sums. V is read only where a row attends: its other cells may hold anything.

        `lines` are those of a position's share of the next K that the tile asks for.
        """
        f, shape = self.f, self.shape
        sums = {f"a{n}_{c}": f.zero(F32V) for n in vectors for c in columns}
        weights = operands(f, self.memory.weights, len(columns))

        def go(members: Sequence[int], low: Value, high: Value, mask: Value | None = None) -> None:
            step = self._add(members, columns, weights, mask, lines if len(members) == len(vectors) else ())
            names = [f"a{n}_{c}" for n in members for c in columns]
            state = _unrolled(f, low, high.max(low), {name: sums[name] for name in names}, step)
            sums.update({name: state[name] for name in names})

        numbers = range(vectors[0] // shape.group, vectors[-1] // shape.group + 1)
        rows = {r: self.rows[r] for r in numbers}
        if len(rows) == 1:
            (row,) = rows.values()
            go(vectors, row.low, row.high, row.mask)
        else:  # what all rows attend together, and what only some do before and after it
            low = rows[numbers[-1]].low
            high = rows[numbers[0]].high.max(low)
            own = {r: [n for n in vectors if n // shape.group == r] for r in numbers}
            if shape.windowed:
                for r in numbers[:-1]:
                    go(own[r], rows[r].low, rows[r].high.min(low))
            go(vectors, low, high)
            for r in numbers[1:]:
                go(own[r], high, rows[r].high)
        for n in vectors:
            for c in columns:
                f.store(sums[f"a{n}_{c}"], self.memory.record, (n * shape.columns + c) * LANES * 4)

    def _add(
        self,
        members: Sequence[int],
        columns: range,
        weights: Sequence[Value],
        mask: Value | None,
        lines: Sequence[int],
    ) -> Callable[[Carried, Value, int], None]:
        """A step that adds one position's values, weighed, to the sums of some vectors."""
        f, memory = self.f, self.memory
        slab, k = self.shape.v, self.shape.k
        row = slab.width * slab.element
        share = k.dim * k.element

        def step(s: Carried, position: Value, e: int) -> None:
            if memory.ahead is not None:
                for line in lines:
                    f.prefetch(memory.ahead, (position - self.first) * share + (e * share + line), _NEAR)
            v = f.at(memory.v, position * row + e * row)
            if mask is not None:
                attended = f.load(F32, mask, (position << 2) + 4 * e).gt(-float("inf"))
                v = attended.select(v, memory.zeros)
            at = (position - self.first) << 2
            for pointer, c in zip(weights, columns, strict=True):
                values = load_stored(f, slab, v, c * LANES * slab.element)
                scaled = c * LANES // BLOCK * SPAN * 4 if slab.scales else 0
                for n in members:
                    where = n * self.shape.weights_pitch + scaled + 4 * e
                    weight = f.load(F32, pointer, at + where)
                    if mask is not None and slab.scales:  # a scale that isn't attended may be NaN
                        weight = attended.select(weight, 0.0)
                    s[f"a{n}_{c}"] = f.fma(f.broadcast(weight), values, s[f"a{n}_{c}"])

        return step


def attended_lanes(f: Function, row: Attended, first: Value) -> Value:
    """Which of the sixteen positions from `first` on the row attends; unsigned, so one comparison."""
    skipped = f.broadcast((first - row.low).cast("trunc", I32))
    count = f.broadcast((row.high - row.low).cast("trunc", I32))
    return (f.iota() + skipped).below(count)


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


def budget(f: Function) -> int:
    """Machine vectors that sums can be held in, beside what is loaded."""
    isa = f.module.isa
    # 32 registers of 16 lanes; 16 of 8, or 32 of 4; 16 of 4.
    return 24 if "avx512f" in isa.requires else 6 if "avx2" in isa.requires or isa.arch == "aarch64" else 3


def groups(count: int, most: int) -> Iterator[tuple[int, int]]:
    """`count` things in groups of nearly equal size, `most` at most: (first, size)."""
    parts = -(-count // max(1, most))
    size = -(-count // parts)
    for first in range(0, count, size):
        yield first, min(size, count - first)


def _unrolled(
    f: Function,
    low: Value,
    high: Value,
    carried: dict[str, Value],
    step: Callable[[Carried, Value, int], None],
) -> Carried:
    """`step(state, i, e)` for i + e from `low` to `high` - 1, a few a turn; `high` isn't below `low`."""
    parts = [(low, high, 1)]
    if "avx2" in f.module.isa.requires:  # elsewhere a step is many instructions as it is
        whole = low + ((high - low) & -_UNROLL)
        parts = [(low, whole, _UNROLL), (whole, high, 1)]
    state = Carried(carried)
    for begin, end, turn in parts:
        for i, state in f.range(begin, end, turn, **{name: state[name] for name in carried}):
            for e in range(turn):
                step(state, i, e)
    return state


def load_stored(f: Function, slab: SlabGeometry, pointer: Value, offset: Value | int) -> Value:
    """Sixteen stored numbers as float32; of those with scales, without them."""
    if slab.quantized:
        return f.load(I8.x(LANES), pointer, offset).cast("sext", I32).cast("sitofp", F32)
    if slab.kv == F16:
        return widen(f, f.load(I16.x(LANES), pointer, offset))
    return f.load(F32V, pointer, offset)


def operands(f: Function, pointer: Value, count: int) -> list[Value]:
    """A pointer for each of `count` products with one scalar in memory, so that each loads it anew.

    AVX-512 multiplies by a scalar in memory at no cost; loading and spreading it first takes up to a third
    longer, since that waits for the port that K and V come through. AVX2 has no register left to keep it in.
    """
    return [f.unrelated(pointer) for _ in range(count)]
