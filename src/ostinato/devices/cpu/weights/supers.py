"""Forms of super-blocks: 256 elements with scales of their own for each 16 or 32, activations in int8.

A unit is a super-block of 16 rows: `[d: 16 f16][dmin: 16 f16, zeros where there are no minima]` and then four
times two blocks of 32, laid out as `UnitLayout` says. The sum of a block, scaled by the integers that it has
for that, is exact in int32 and in f32 (it stays below 2^24); one fma adds it, times the activations' scale,
to the sum of the super-block, which one more adds, times d, to the row's. Minima go the same way.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32V, I16, I32
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels.halves import widen
from ostinato.devices.cpu.kernels.quantize import BLOCK
from ostinato.devices.cpu.kernels.rows import INT8, UNIT
from ostinato.devices.cpu.weights.blocks import UnitLayout
from ostinato.devices.cpu.weights.packed import GROUP, PackedForm, Sources, fetch
from ostinato.devices.cpu.weights.row_block import Add, RowBlock, add_block
from ostinato.ir.ops.quantize import Rounding

SUPER = 256
_HEAD = 4 * GROUP
_PAIRS = SUPER // UNIT
_SPAN = 2
"""Super-blocks that packing finishes for all 16 rows before it goes on: what it writes stays in L1."""


class SuperForm(PackedForm):
    """Base of the forms of super-blocks."""

    pair: ClassVar[UnitLayout]
    """Of two blocks. A scale may be more than one byte of each row."""
    limit: ClassVar[int]
    """The greatest byte that `bytes_of` gives."""
    d: ClassVar[int]
    """Where the super-block's scale is in its source block."""
    dmin: ClassVar[int | None] = None

    @property
    def unit_bytes(self) -> int:
        return _HEAD + _PAIRS * self.pair.nbytes

    def rounding(self, isa: Isa) -> Rounding:
        return INT8

    def group_bytes(self, k: int) -> int:
        return k // SUPER * self.unit_bytes

    @abstractmethod
    def bytes_of(self, f: Function, w: Value, offset: int) -> list[Value]:
        """The block's quants at `offset`, unsigned: 8 times 64 bytes, four elements of 16 rows each."""

    @abstractmethod
    def block(self, f: Function, isa: Isa, pair: Value, b: int) -> Add:
        """Block `b` of the two at `pair`, loaded once for any number of rows. It adds to two sums, of the
        quants and of the minima, or to the first alone where there are no minima."""

    @abstractmethod
    def words(self, f: Function, block: Value) -> list[list[Value]]:
        """One row's quants from its source block: for each 32 elements the i32 that go 64 bytes apart into
        the unit."""

    @abstractmethod
    def values(self, f: Function, words: Sequence[Value]) -> list[Value]:
        """The inverse of `words` for one block: 32 f32 in two vectors, before scale and minimum."""

    @abstractmethod
    def pack_scales(self, f: Function, block: Value, first: Value, lane: Value) -> None:
        """Write one row's scales and minima from its source block into the unit's pairs, the first of which
        is at `first`."""

    @abstractmethod
    def scales(self, f: Function, pair: Value, lane: Value, b: int) -> list[tuple[Value, Value | None]]:
        """The inverse, for one block: scale and minimum of its first and of its last 16 elements, f32."""

    def dot(
        self, f: Function, isa: Isa, k: int, w: Value, rows: Sequence[Value], ahead: int = 0
    ) -> list[Value]:
        count, kinds = range(len(rows)), 1 if self.dmin is None else 2
        names = [[f"{t}.{kind}" for kind in range(kinds)] for t in count]
        zeros = {name: f.zero(F32V) for each in names for name in each}
        for u, s in f.range(0, k // SUPER, 1, **{str(t): f.zero(F32V) for t in count}):
            unit = f.at(w, u * self.unit_bytes)
            for p, sums in f.range(0, _PAIRS, 1, **zeros):
                pair, at = f.at(f.at(unit, p * self.pair.nbytes), _HEAD), u * _PAIRS + p
                fetch(f, pair, self.pair.nbytes, ahead)
                for b in range(2):
                    add = self.block(f, isa, pair, b)
                    for t in count:
                        block = RowBlock.of(f, rows[t], k, at, b)
                        added = add_block(f, add, block, [sums[name] for name in names[t]])
                        for name, value in zip(names[t], added, strict=True):
                            sums[name] = value
            scales = [widen(f, f.load(I16.x(GROUP), unit, 2 * GROUP * kind)) for kind in range(kinds)]
            for t in count:
                s[str(t)] = f.fma(scales[0], sums[names[t][0]], s[str(t)])
                if kinds == 2:
                    s[str(t)] = f.fma(-scales[1], sums[names[t][1]], s[str(t)])
        return [s[str(t)] for t in count]

    def pack(self, f: Function, k: int, sources: Sources, out: Value) -> None:
        units, nbytes = k // SUPER, self.source.block_bytes
        for first, _ in f.range(0, units, _SPAN):
            last = (first + _SPAN).min(units)
            for lane, _ in f.range(0, GROUP):
                row, there = sources.row(lane)
                step = there * nbytes
                for u, _ in f.range(first, last):
                    self._pack_unit(f, f.at(row, u * step), f.at(out, u * self.unit_bytes), lane)

    def _pack_unit(self, f: Function, block: Value, unit: Value, lane: Value) -> None:
        head, pairs, pair = f.at(unit, lane * 2), f.at(unit, _HEAD), self.pair
        f.store(f.load(I16, block, self.d, align=1), head)
        dmin = f.zero(I16) if self.dmin is None else f.load(I16, block, self.dmin, align=1)
        f.store(dmin, head, 2 * GROUP)
        quants = f.at(pairs, lane * 4)
        for i, words in enumerate(self.words(f, block)):
            first = i // 2 * pair.nbytes + pair.quants[i % 2]
            for j, word in enumerate(words):
                f.store(word, quants, first + 4 * GROUP * j)
        self.pack_scales(f, block, pairs, lane)

    def unpack(self, f: Function, k: int, w: Value, lane: Value, out: Value) -> None:
        pair = self.pair
        count = (pair.scales[0] - pair.quants[0]) // (4 * GROUP)
        for u, _ in f.range(0, k // SUPER):
            unit = f.at(w, u * self.unit_bytes)
            head, quants = f.at(unit, lane * 2), f.at(unit, lane * 4)
            d, dmin = (widen(f, f.load(I16, head, at)) for at in (0, 2 * GROUP))
            for p, _ in f.range(0, _PAIRS):
                first = p * pair.nbytes
                to = f.at(out, (u * _PAIRS + p) * (4 * UNIT))
                for b in range(2):
                    at = f.at(f.at(quants, first), _HEAD + pair.quants[b])
                    values = self.values(f, [f.load(I32, at, 4 * GROUP * i) for i in range(count)])
                    scales = self.scales(f, f.at(f.at(unit, first), _HEAD), lane, b)
                    for i, (value, (scale, minimum)) in enumerate(zip(values, scales, strict=True)):
                        value = value * f.broadcast(d * scale)
                        if minimum is not None:
                            value = value - f.broadcast(dmin * minimum)
                        f.store(value, to, 4 * BLOCK * b + 4 * GROUP * i)
