"""Q6_K, packed: six bits with 32 too much, under an int8 scale for each 16.

A unit, 3392 bytes: its head, then four pairs of blocks, 832 bytes each: `[nibbles 0: 256][high bits 0: 128]
[scales 0: 16 times 2 bytes][scales 1][nibbles 1][high bits 1]`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I16
from ostinato.devices.cpu.weights.bits import (
    field_words,
    fields,
    load_fields,
    load_nibbles,
    nibble_words,
    nibbles,
    wide,
)
from ostinato.devices.cpu.weights.blocks import UnitLayout
from ostinato.devices.cpu.weights.supers16 import SuperForm16
from ostinato.ir.encoding import Encoding


class Q6_KForm(SuperForm16):  # noqa: N801  (ggml's name)
    """6.5625 bits a weight, symmetric."""

    name = "q6_k.r16"
    stored = Encoding("Q6_K:r16", 4096, 3392)
    pair = UnitLayout(832, quants=(0, 448), scales=(384, 416))
    limit = 63
    over = 32
    d = 208

    def bytes_of(self, f: Function, w: Value, offset: int) -> list[Value]:
        low, high = load_nibbles(f, w, offset), load_fields(f, w, offset + 256, bits=2, to=4)
        return [a | b for a, b in zip(low, high, strict=True)]

    def words(self, f: Function, block: Value) -> list[list[Value]]:
        found = []
        for half in range(2):
            first, second = (nibble_words(f, block, 64 * half + 32 * run) for run in range(2))
            low = [first[0], second[0], first[1], second[1]]
            high = field_words(f, block, 128 + 32 * half, bits=2)
            found += [a + b for a, b in zip(low, high, strict=True)]
        return found

    def values(self, f: Function, words: Sequence[Value]) -> list[Value]:
        return wide(f, (nibbles(f, words[:4]) | (fields(f, words[4:], bits=2) << 4)) - 32)

    def widened(self, scales: Value) -> list[Value]:
        return [scales.cast("sext", I16)]

    def scale_pairs(self, f: Function, block: Value) -> Sequence[Value]:
        return [f.load(I16, block, 192 + 2 * b, align=1) for b in range(8)]
