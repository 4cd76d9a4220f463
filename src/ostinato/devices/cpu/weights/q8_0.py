"""Q8_0, packed: bytes with 128 too much, as the dot-product instruction takes one side unsigned; one scale.

A unit, 1088 bytes: `[quants 0: 512][scales 0: 16 f16][scales 1][quants 1]`. Byte 64 i + 4 r + j of a block's
quants is element 4 i + j of row r. Encodings of fewer bits whose weights are an int8 times the same scale go
into this form without loss: Q5_0, and IQ4_NL, whose nibbles index a table of int8.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I1, I8, I32
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.weights.bits import as_bytes, wide
from ostinato.devices.cpu.weights.blocks import BlockForm, UnitLayout
from ostinato.formats.encodings.iq4_nl import STEPS
from ostinato.ir.encoding import Encoding


class Q8_0Form(BlockForm):  # noqa: N801  (ggml's name)
    """8.5 bits a weight, symmetric."""

    name = "q8_0.r16"
    stored = Encoding("Q8_0:r16", 1024, 1088)
    unit = UnitLayout(1088, quants=(0, 576), scales=(512, 544))
    limit = 255
    over = 128

    def bytes_of(self, f: Function, isa: Isa, w: Value, offset: int) -> list[Value]:
        return [f.load(I8.x(64), w, offset + 64 * i) for i in range(8)]

    def words(self, f: Function, block: Value) -> list[Value]:
        flip = f.const(I32, -0x7F7F7F80)  # the top bit of every byte: 128 more
        return [f.load(I32, block, 2 + 4 * i, align=1) ^ flip for i in range(8)]

    def values(self, f: Function, words: Sequence[Value]) -> list[Value]:
        return wide(f, as_bytes(f, words) ^ -128)


class Q5_0AsQ8_0(Q8_0Form):  # noqa: N801
    """Five-bit quants around 16."""

    def words(self, f: Function, block: Value) -> list[Value]:
        fifth = f.load(I32, block, 2, align=1).cast("bitcast", I1.x(32))
        low = _nibbles(f, f.load(I8.x(16), block, 6))
        return as_words(f, fifth.select(low + 16, low) + (128 - 16))


class IQ4_NLAsQ8_0(Q8_0Form):  # noqa: N801
    """Nibbles that index a table."""

    def words(self, f: Function, block: Value) -> list[Value]:
        index = _nibbles(f, f.load(I8.x(16), block, 2))
        value = f.const(index.type, int(STEPS[0]) + 128)
        for i, step in enumerate(STEPS[1:].tolist(), 1):
            value = index.eq(i).select(f.const(index.type, step + 128), value)
        return as_words(f, value)


def as_words(f: Function, values: Value) -> list[Value]:
    """A vector of bytes as i32 scalars."""
    vector = values.cast("bitcast", I32.x(values.type.lanes // 4))
    return [f.lane(vector, i) for i in range(vector.type.lanes)]


def _nibbles(f: Function, packed: Value) -> Value:
    """16 bytes to 32 values, the low halves first: ggml's order."""
    return f.concat(packed & 15, packed >> 4)
