"""Q4_0, packed: nibbles with 8 too much, one scale.

A unit, 576 bytes: `[quants 0: 256][scales 0: 16 f16][scales 1][quants 1]`. Byte 64 i + 4 r + j of a block's
quants is byte 4 i + j of row r's `qs`: the low nibbles are elements 0 … 15, the high ones 16 … 31.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I32
from ostinato.devices.cpu.weights.bits import load_nibbles, nibbles, wide
from ostinato.devices.cpu.weights.blocks import BlockForm, UnitLayout
from ostinato.ir.encoding import Encoding


class NibbleForm(BlockForm):
    """What the forms with 4-bit quants share."""

    limit = 15

    def bytes_of(self, f: Function, w: Value, offset: int) -> list[Value]:
        return load_nibbles(f, w, offset)

    def words(self, f: Function, block: Value) -> list[Value]:
        start = self.source.block_bytes - 16
        return [f.load(I32, block, start + 4 * i, align=1) for i in range(4)]


class Q4_0Form(NibbleForm):  # noqa: N801  (ggml's name)
    """4.5 bits a weight, symmetric."""

    name = "q4_0.r16"
    stored = Encoding("Q4_0:r16", 1024, 576)
    unit = UnitLayout(576, quants=(0, 320), scales=(256, 288))
    over = 8

    def values(self, f: Function, words: Sequence[Value]) -> list[Value]:
        return wide(f, nibbles(f, words) - 8)
