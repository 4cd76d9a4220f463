"""Q3_K, packed: three bits with 4 too much, under a six-bit scale for each 16, widened to int8.

A unit, 1856 bytes: its head, then four pairs of blocks, 448 bytes each: `[low bits 0: 128][high bits 0: 64]
[scales 0: 16 times 2 bytes][scales 1][low bits 1][high bits 1]`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I16, I32
from ostinato.devices.cpu.weights.bits import bytes_less, field_words, fields, load_fields, wide
from ostinato.devices.cpu.weights.blocks import UnitLayout
from ostinato.devices.cpu.weights.supers16 import SuperForm16
from ostinato.ir.encoding import Encoding


class Q3_KForm(SuperForm16):  # noqa: N801  (ggml's name)
    """3.4375 bits a weight, symmetric."""

    name = "q3_k.r16"
    stored = Encoding("Q3_K:r16", 4096, 1856)
    pair = UnitLayout(448, quants=(0, 256), scales=(192, 224))
    limit = 7
    over = 4
    d = 108

    def bytes_of(self, f: Function, w: Value, offset: int) -> list[Value]:
        low, high = load_fields(f, w, offset, bits=2), load_fields(f, w, offset + 128, bits=1, to=2)
        return [a | b for a, b in zip(low, high, strict=True)]

    def words(self, f: Function, block: Value) -> list[list[Value]]:
        low = [words for run in range(2) for words in field_words(f, block, 32 + 32 * run, bits=2)]
        return [a + b for a, b in zip(low, field_words(f, block, 0, bits=1), strict=True)]

    def values(self, f: Function, words: Sequence[Value]) -> list[Value]:
        return wide(f, (fields(f, words[:2], bits=2) | (fields(f, words[2:], bits=1) << 2)) - 4)

    def widened(self, scales: Value) -> list[Value]:
        return [scales.cast("sext", I16)]

    def scale_pairs(self, f: Function, block: Value) -> Sequence[Value]:
        """The twelve bytes as sixteen (`signed_scales` of the codec)."""
        first, second, high = (f.load(I32, block, 96 + 4 * i, align=1) for i in range(3))
        pairs = []
        for i in range(4):
            low = ((first, second)[i % 2] >> (4 * (i // 2))) & 0x0F0F0F0F
            word = low | (((high >> (2 * i)) & 0x03030303) << 4)
            word = bytes_less(word, 32)
            pairs += [word.cast("trunc", I16), (word >> 16).cast("trunc", I16)]
        return pairs
