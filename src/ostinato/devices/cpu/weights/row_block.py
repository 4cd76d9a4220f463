"""A block of a quantised row, as products read it; `kernels.rows` says how one lies in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I32, I32V, I64
from ostinato.devices.cpu.kernels.quantize import BLOCK, META_BYTES
from ostinato.devices.cpu.kernels.rows import REST_AT, REST_RECORD, REST_SUMS, SUM, UNIT

_SUMS_BYTES = BLOCK // SUM * 2
"""Of a block's sums."""


@dataclass(frozen=True)
class RowBlock:
    """Where a block has its quants, its record and its sums of 16, in the row at `row`."""

    row: Value
    quants: Value
    record: Value
    sums: Value

    @classmethod
    def of(cls, f: Function, row: Value, k: int, unit: Value, b: int) -> RowBlock:
        """Block `b` of the two in a unit of a row of `k` elements, filled up to whole units."""
        records, sums = k, k + k // BLOCK * META_BYTES
        return cls(
            row,
            f.at(f.at(row, unit * UNIT), b * BLOCK),
            f.at(f.at(row, unit * (2 * META_BYTES)), records + b * META_BYTES),
            f.at(f.at(row, unit * (2 * _SUMS_BYTES)), sums + b * _SUMS_BYTES),
        )


Add = Callable[[RowBlock, list[Value]], list[Value]]
"""Add a block's products with one row to that row's sums, each of 16 f32."""


def add_block(f: Function, add: Add, block: RowBlock, sums: list[Value]) -> list[Value]:
    """The sums with a block's products, and with its rest's where it is rounded further."""
    sums = add(block, sums)
    place = f.load(I32, block.record, REST_AT)

    def add_rest(sums: list[Value]) -> list[Value]:
        rest = f.at(block.row, place.cast("zext", I64))
        return add(RowBlock(block.row, rest, f.at(rest, REST_RECORD), f.at(rest, REST_SUMS)), sums)

    return f.seldom(place.ne(0), sums, add_rest)


def start_of(f: Function, record: Value, over: int) -> Value:
    """What a block's sums start from when its bytes are `over` too large: -over·sum(q), from the record."""
    if over == 0:
        return f.zero(I32V)
    return f.broadcast(f.load(I32, record, 8)) << {8: 0, 16: 1, 128: 4}[over]
