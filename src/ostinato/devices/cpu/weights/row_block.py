"""A block of a quantised row, as products read it; `kernels.rows` says how one lies in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I32, I32V, I64

BLOCK, UNIT = 32, 64
RECORD = 16
"""Bytes of a record: f32 d, f32 d·sum(q), i32 -8·sum(q), i32 further."""
_FURTHER = 12
_REST_RECORD, _REST_SUMS = 32, 48
"""Where in the rest of a block its record and its sums of 16 are."""


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
        records, sums = k, k + k // BLOCK * RECORD
        return cls(
            row,
            f.at(f.at(row, unit * UNIT), b * BLOCK),
            f.at(f.at(row, unit * (2 * RECORD)), records + b * RECORD),
            f.at(f.at(row, unit * 8), sums + b * 4),
        )


Add = Callable[[RowBlock, list[Value]], list[Value]]
"""Add a block's products with one row to that row's sums, each of 16 f32."""


def add_block(f: Function, add: Add, block: RowBlock, sums: list[Value]) -> list[Value]:
    """The sums with a block's products, and with its rest's where it is rounded further."""
    sums = add(block, sums)
    further = f.load(I32, block.record, _FURTHER)

    def add_rest(sums: list[Value]) -> list[Value]:
        rest = f.at(block.row, further.cast("zext", I64))
        return add(RowBlock(block.row, rest, f.at(rest, _REST_RECORD), f.at(rest, _REST_SUMS)), sums)

    return f.further(further.ne(0), sums, add_rest)


def start_of(f: Function, record: Value, over: int) -> Value:
    """What a block's sums start from when its bytes are `over` too large: -over·sum(q), from the record."""
    if over == 0:
        return f.zero(I32V)
    return f.broadcast(f.load(I32, record, 8)) << {8: 0, 16: 1, 128: 4}[over]
