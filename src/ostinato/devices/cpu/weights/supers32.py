"""Super-blocks with a scale for each 32 elements: a byte of each row, and one for the minimum."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32, I8, I32
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels.dot import dot_block, taken_off
from ostinato.devices.cpu.weights.packed import GROUP
from ostinato.devices.cpu.weights.row_block import Add, RowBlock, start_of
from ostinato.devices.cpu.weights.supers import SuperForm


class SuperForm32(SuperForm):
    """Base of these forms."""

    over: ClassVar[int] = 0
    """What the bytes have too much."""
    signed: ClassVar[bool] = False
    """Whether scales are int8."""

    def block(self, f: Function, isa: Isa, pair: Value, b: int) -> Add:
        weights = self.bytes_of(f, pair, self.pair.quants[b])
        scale = f.load(I8.x(GROUP), pair, self.pair.scales[b]).cast(self._widen, I32)
        off = taken_off(isa, self.limit, self.over)
        minimum: list[Value] = []
        if self.pair.mins is not None:
            minimum.append(f.load(I8.x(GROUP), pair, self.pair.mins[b]).cast("zext", I32).cast("sitofp", F32))

        def add(row: RowBlock, sums: list[Value]) -> list[Value]:
            start = start_of(f, row.record, self.over - off)
            total = dot_block(f, isa, start, weights, row.quants, 0, self.limit, off) * scale
            factors = [total.cast("sitofp", F32), *minimum]
            d = [f.broadcast(f.load(F32, row.record, 4 * i)) for i in range(len(factors))]  # d and d·sum(q)
            return [f.fma(*each) for each in zip(factors, d, sums, strict=True)]

        return add

    @abstractmethod
    def scale_words(self, f: Function, block: Value) -> list[Value]:
        """One row's scales from its source block, four bytes a word; then its minima."""

    def pack_scales(self, f: Function, block: Value, first: Value, lane: Value) -> None:
        at, pair = f.at(first, lane), self.pair
        for i, word in enumerate(self.scale_words(f, block)):
            places = pair.scales if i < 2 else pair.mins
            assert places is not None
            for j in range(4):
                b = i % 2 * 4 + j
                f.store((word >> (8 * j)).cast("trunc", I8), at, b // 2 * pair.nbytes + places[b % 2])

    def scales(self, f: Function, pair: Value, lane: Value, b: int) -> list[tuple[Value, Value | None]]:
        at = f.at(pair, lane)
        scale = f.load(I8, at, self.pair.scales[b]).cast(self._widen, I32).cast("sitofp", F32)
        minimum = None
        if self.pair.mins is not None:
            minimum = f.load(I8, at, self.pair.mins[b]).cast("zext", I32).cast("sitofp", F32)
        return [(scale, minimum)] * 2

    @property
    def _widen(self) -> str:
        return "sext" if self.signed else "zext"
