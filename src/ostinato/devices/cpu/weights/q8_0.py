"""Q8_0, packed: bytes with 128 too much, as the dot-product instruction takes one side unsigned; one scale.

A unit, 1088 bytes: `[quants 0: 512][scales 0: 16 f16][scales 1][quants 1]`. Byte 64 i + 4 r + j of a block's
quants is element 4 i + j of row r.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I8, I32
from ostinato.devices.cpu.weights.bits import as_bytes, wide
from ostinato.devices.cpu.weights.blocks import BlockForm, UnitLayout
from ostinato.ir.encoding import Encoding


class Q8_0Form(BlockForm):  # noqa: N801  (ggml's name)
    """8.5 bits a weight, symmetric."""

    name = "q8_0.r16"
    stored = Encoding("Q8_0:r16", 1024, 1088)
    unit = UnitLayout(1088, quants=(0, 576), scales=(512, 544))
    limit = 255
    over = 128

    def bytes_of(self, f: Function, w: Value, offset: int) -> list[Value]:
        return [f.load(I8.x(64), w, offset + 64 * i) for i in range(8)]

    def words(self, f: Function, block: Value) -> list[Value]:
        flip = f.const(I32, -0x7F7F7F80)  # the top bit of every byte: 128 more
        return [f.load(I32, block, 2 + 4 * i, align=1) ^ flip for i in range(8)]

    def values(self, f: Function, words: Sequence[Value]) -> list[Value]:
        return wide(f, as_bytes(f, words) ^ -128)
