"""Forms of block encodings: bytes for the dot-product instruction, 16-bit scales, activations in int8.

A unit is 64 elements of 16 rows, two blocks; k is filled up to whole units with blocks of zeros. A block's
sum of products is exact in int32; one fma adds it, scaled, to the row's f32 sum, then one more adds the
minimum's share. Blocks follow each other in order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32, F32V, I16, I32, I32V, Type
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels.dot import dot_block, taken_off
from ostinato.devices.cpu.kernels.halves import widen
from ostinato.devices.cpu.weights.packed import GROUP, PackedForm, Sources

BLOCK, UNIT = 32, 64
RECORD = 16
"""Bytes of a quantised row's record for a block: f32 d, f32 d·sum(q), i32 -8·sum(q), i32 -128·sum(q)."""
_SPAN = 8
"""Units that packing finishes for all 16 rows before it goes on: what it writes stays in L1."""


@dataclass(frozen=True)
class UnitLayout:
    """Offsets in a unit, for its two blocks: the quants of 16 rows, their 16 scales, their 16 minima."""

    nbytes: int
    quants: tuple[int, int]
    scales: tuple[int, int]
    mins: tuple[int, int] | None = None


@dataclass(frozen=True)
class BlockForm(PackedForm):
    """Base of the block forms."""

    quantize = BLOCK
    unit: ClassVar[UnitLayout]
    limit: ClassVar[int]
    """The greatest byte that `bytes_of` gives."""
    scale_type: ClassVar[Type] = I16
    over: ClassVar[int]
    """What the bytes have too much."""

    def group_bytes(self, k: int) -> int:
        return units(k) * self.unit.nbytes

    @abstractmethod
    def bytes_of(self, f: Function, w: Value, offset: int) -> list[Value]:
        """The block's quants at `offset`, unsigned: 8 times 64 bytes, four elements of 16 rows each."""

    @abstractmethod
    def words(self, f: Function, block: Value) -> list[Value]:
        """One row's quants from its source block, as the i32 that go 64 bytes apart into the unit."""

    @abstractmethod
    def values(self, f: Function, words: Sequence[Value]) -> list[Value]:
        """The inverse of `words`: 32 f32 in two vectors, before scale and minimum."""

    def scale(self, f: Function, bits: Value) -> Value:
        """A block's scales or minima, of type `scale_type`, as f32."""
        return widen(f, bits)

    def dot(self, f: Function, isa: Isa, k: int, w: Value, rows: Sequence[Value]) -> list[Value]:
        layout, meta = self.unit, units(k) * UNIT
        off = taken_off(isa, self.limit, self.over)
        start = {str(t): f.zero(F32V) for t in range(len(rows))}
        for u, s in f.range(0, units(k), 1, **start):
            unit = f.at(w, u * layout.nbytes)
            quants = [f.at(row, u * UNIT) for row in rows]
            records = [f.at(f.at(row, u * (2 * RECORD)), meta) for row in rows]
            for b in range(2):
                weights = self.bytes_of(f, unit, layout.quants[b])
                scale = self.scale(f, f.load(self.scale_type.x(GROUP), unit, layout.scales[b]))
                if layout.mins is not None:
                    minimum = self.scale(f, f.load(self.scale_type.x(GROUP), unit, layout.mins[b]))
                for t in range(len(rows)):
                    record = f.at(records[t], b * RECORD)
                    acc = start_of(f, record, self.over - off)
                    acc = dot_block(f, isa, acc, weights, quants[t], b * BLOCK, self.limit, off)
                    both = scale * f.broadcast(f.load(F32, record))
                    total = f.fma(both, acc.cast("sitofp", F32), s[str(t)])
                    if layout.mins is not None:
                        total = f.fma(minimum, f.broadcast(f.load(F32, record, 4)), total)
                    s[str(t)] = total
        return [s[str(t)] for t in range(len(rows))]

    def pack(self, f: Function, k: int, sources: Sources, out: Value) -> None:
        layout, blocks, nbytes = self.unit, k // BLOCK, self.source.block_bytes
        for first, _ in f.range(0, units(k), _SPAN):
            last = (first + _SPAN).min(units(k))
            for lane, _ in f.range(0, GROUP):
                row, there = sources.row(lane)
                step = there * nbytes
                for u, _ in f.range(first, last):
                    unit = f.at(out, u * layout.nbytes)
                    for b in range(2):
                        block = f.at(row, (u * 2 + b) * step)
                        if b == 1 and blocks % 2:
                            block = (u * 2 + 1).lt(blocks).select(block, sources.zeros)
                        self._pack_block(f, block, unit, lane, b)

    def _pack_block(self, f: Function, block: Value, unit: Value, lane: Value, b: int) -> None:
        kind = self.scale_type
        quants, scales = f.at(unit, lane * 4), f.at(unit, lane * kind.nbytes)
        for i, word in enumerate(self.words(f, block)):
            f.store(word, quants, self.unit.quants[b] + 4 * GROUP * i)
        f.store(f.load(kind, block, align=1), scales, self.unit.scales[b])
        if self.unit.mins is not None:
            f.store(f.load(kind, block, kind.nbytes, align=1), scales, self.unit.mins[b])

    def unpack(self, f: Function, k: int, w: Value, lane: Value, out: Value) -> None:
        layout = self.unit
        for u, _ in f.range(0, k // UNIT):
            for b in range(2):
                self._unpack_block(f, f.at(w, u * layout.nbytes), lane, b, f.at(out, u * (4 * UNIT)))
        if k % UNIT:
            done = k // UNIT
            self._unpack_block(f, f.at(w, done * layout.nbytes), lane, 0, f.at(out, done * (4 * UNIT)))

    def _unpack_block(self, f: Function, unit: Value, lane: Value, b: int, out: Value) -> None:
        layout = self.unit
        kind = self.scale_type
        quants, scales = f.at(unit, lane * 4), f.at(unit, lane * kind.nbytes)
        count = (layout.scales[0] - layout.quants[0]) // (4 * GROUP)
        words = [f.load(I32, quants, layout.quants[b] + 4 * GROUP * i) for i in range(count)]
        scale = f.broadcast(self.scale(f, f.load(kind, scales, layout.scales[b])))
        for i, value in enumerate(self.values(f, words)):
            value = value * scale
            if layout.mins is not None:
                value = value + f.broadcast(self.scale(f, f.load(kind, scales, layout.mins[b])))
            f.store(value, out, 4 * BLOCK * b + 4 * GROUP * i)


def units(k: int) -> int:
    return -(-k // UNIT)


def start_of(f: Function, record: Value, over: int) -> Value:
    """What a block's sums start from when its bytes are `over` too large: -over·sum(q), from the record."""
    if over == 0:
        return f.zero(I32V)
    if over == 16:
        return f.broadcast(f.load(I32, record, 8)) << 1
    return f.broadcast(f.load(I32, record, {8: 8, 128: 12}[over]))
