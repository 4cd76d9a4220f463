"""Super-blocks with a scale for each 16 elements: two bytes of each row for a block of 32.

The sums of products of the two halves are multiplied by their scales in integers. What the bytes have too
much, and minima, go by the activations' sums of 16, two products to an instruction.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32, I8, I16, I32, I32V
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels.dot import dot2, dot_block
from ostinato.devices.cpu.weights.packed import GROUP
from ostinato.devices.cpu.weights.row_block import Add, RowBlock
from ostinato.devices.cpu.weights.supers import SuperForm


class SuperForm16(SuperForm):
    """Base of these forms."""

    sums = True
    over: ClassVar[int] = 0
    """What the bytes have too much."""

    @abstractmethod
    def widened(self, scales: Value) -> list[Value]:
        """A vector of the unit's scale bytes as i16, then that of its minima where there are any."""

    @abstractmethod
    def scale_pairs(self, f: Function, block: Value) -> Sequence[Value]:
        """One row's scale bytes from its source block: eight i16."""

    def block(self, f: Function, isa: Isa, pair: Value, b: int) -> Add:
        weights = self.bytes_of(f, pair, self.pair.quants[b])
        scales, *mins = self.widened(f.load(I8.x(2 * GROUP), pair, self.pair.scales[b]))
        both = scales.cast("bitcast", I32V)
        first, last = (both << 16).ashr(16), both.ashr(16)

        def add(row: RowBlock, sums: list[Value]) -> list[Value]:
            zero, further = f.zero(I32V), f.broadcast(f.load(I32, row.sums)).cast("bitcast", I16.x(2 * GROUP))
            total = dot_block(f, isa, zero, weights[:4], row.quants, 0, self.limit) * first
            total = total + dot_block(f, isa, zero, weights[4:], row.quants, 16, self.limit) * last
            if self.over:
                total = total - dot2(f, isa, scales, further) * self.over
            terms = [total, *(dot2(f, isa, minimum, further) for minimum in mins)]
            d = f.broadcast(f.load(F32, row.record))
            return [f.fma(term.cast("sitofp", F32), d, s) for term, s in zip(terms, sums, strict=True)]

        return add

    def pack_scales(self, f: Function, block: Value, first: Value, lane: Value) -> None:
        at, pair = f.at(first, lane * 2), self.pair
        for b, scales in enumerate(self.scale_pairs(f, block)):
            f.store(scales, at, b // 2 * pair.nbytes + pair.scales[b % 2])

    def scales(self, f: Function, pair: Value, lane: Value, b: int) -> list[tuple[Value, Value | None]]:
        found = self.widened(f.load(I8.x(2), f.at(pair, lane * 2), self.pair.scales[b]))
        scales, *mins = (value.cast("sext", I32).cast("sitofp", F32) for value in found)
        return [(f.lane(scales, i), f.lane(mins[0], i) if mins else None) for i in range(2)]
