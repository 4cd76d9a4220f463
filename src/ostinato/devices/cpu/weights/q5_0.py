"""Q5_0, packed: five bits with 16 too much, one scale.

A unit, 704 bytes: `[nibbles 0: 256][bits 0: 64][scales 0: 16 f16][scales 1][nibbles 1][bits 1]`; the nibbles
as in Q4_0. Bit i of byte 4 r + j of a block's bits is the fifth bit of row r's element 4 i + j.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I32
from ostinato.devices.cpu.weights.bits import bit_word, fields, load_fields, load_nibbles, nibbles, wide
from ostinato.devices.cpu.weights.blocks import BlockForm, UnitLayout
from ostinato.ir.encoding import Encoding


class FiveBitForm(BlockForm):
    """What the forms with 5-bit quants share."""

    limit = 31

    def bytes_of(self, f: Function, w: Value, offset: int) -> list[Value]:
        low, high = load_nibbles(f, w, offset), load_fields(f, w, offset + 256, bits=1, to=4)
        return [a | b for a, b in zip(low, high, strict=True)]

    def words(self, f: Function, block: Value) -> list[Value]:
        start = self.source.block_bytes - 20
        bits, *low = (f.load(I32, block, start + 4 * i, align=1) for i in range(5))
        return [*low, bit_word(f, bits)]

    def values(self, f: Function, words: Sequence[Value]) -> list[Value]:
        return wide(f, (nibbles(f, words[:4]) | (fields(f, words[4:], bits=1) << 4)) - self.over)


class Q5_0Form(FiveBitForm):  # noqa: N801  (ggml's name)
    """5.5 bits a weight, symmetric."""

    name = "q5_0.r16"
    stored = Encoding("Q5_0:r16", 1024, 704)
    unit = UnitLayout(704, quants=(0, 384), scales=(320, 352))
    over = 16
