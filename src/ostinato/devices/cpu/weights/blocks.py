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
from ostinato.devices.cpu.emit.types import F32, F32V, I16, I32, Type
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels.dot import dot_block, taken_off
from ostinato.devices.cpu.kernels.halves import widen
from ostinato.devices.cpu.kernels.quantize import BLOCK
from ostinato.devices.cpu.kernels.rows import INT8, UNIT
from ostinato.devices.cpu.weights.packed import GROUP, PackedForm, Sources, fetch
from ostinato.devices.cpu.weights.row_block import Add, RowBlock, add_block, start_of
from ostinato.ir.ops.quantize import Rounding

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

    unit: ClassVar[UnitLayout]
    limit: ClassVar[int]
    """The greatest byte that `bytes_of` gives."""
    scale_type: ClassVar[Type] = I16
    over: ClassVar[int]
    """What the bytes have too much."""

    def rounding(self, isa: Isa) -> Rounding:
        return INT8

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

    def dot(
        self, f: Function, isa: Isa, k: int, w: Value, rows: Sequence[Value], ahead: int = 0
    ) -> list[Value]:
        start = {str(t): f.zero(F32V) for t in range(len(rows))}
        for u, s in f.range(0, units(k), 1, **start):
            unit = f.at(w, u * self.unit.nbytes)
            fetch(f, unit, self.unit.nbytes, ahead)
            for b in range(2):
                add = self._block(f, isa, unit, b)
                for t, row in enumerate(rows):
                    block = RowBlock.of(f, row, units(k) * UNIT, u, b)
                    (s[str(t)],) = add_block(f, add, block, [s[str(t)]])
        return [s[str(t)] for t in range(len(rows))]

    def _block(self, f: Function, isa: Isa, unit: Value, b: int) -> Add:
        """Block `b` of the two in a unit, loaded once for any number of rows."""
        layout, kind = self.unit, self.scale_type.x(GROUP)
        off = taken_off(isa, self.limit, self.over)
        weights = self.bytes_of(f, unit, layout.quants[b])
        scale = self.scale(f, f.load(kind, unit, layout.scales[b]))
        minimum = None if layout.mins is None else self.scale(f, f.load(kind, unit, layout.mins[b]))

        def add(row: RowBlock, sums: list[Value]) -> list[Value]:
            acc = start_of(f, row.record, self.over - off)
            acc = dot_block(f, isa, acc, weights, row.quants, 0, self.limit, off)
            both = scale * f.broadcast(f.load(F32, row.record))
            total = f.fma(both, acc.cast("sitofp", F32), sums[0])
            if minimum is not None:
                total = f.fma(minimum, f.broadcast(f.load(F32, row.record, 4)), total)
            return [total]

        return add

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
