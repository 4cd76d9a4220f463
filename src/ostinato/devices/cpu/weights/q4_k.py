"""Q4_K, packed: nibbles under a six-bit scale and minimum for each 32, widened to bytes.

A unit, 2368 bytes: its head, then four pairs of blocks, 576 bytes each: `[quants 0: 256][scales 0, scales 1,
minima 0, minima 1: 16 bytes each][quants 1]`; the quants as in Q4_0.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I32
from ostinato.devices.cpu.weights.bits import load_nibbles, nibble_words, nibbles, wide
from ostinato.devices.cpu.weights.blocks import UnitLayout
from ostinato.devices.cpu.weights.supers32 import SuperForm32
from ostinato.ir.encoding import Encoding


class Q4_KForm(SuperForm32):  # noqa: N801  (ggml's name)
    """4.5 bits a weight, asymmetric."""

    name = "q4_k.r16"
    stored = Encoding("Q4_K:r16", 4096, 2368)
    pair = UnitLayout(576, quants=(0, 320), scales=(256, 272), mins=(288, 304))
    limit = 15
    d, dmin = 0, 2

    def bytes_of(self, f: Function, w: Value, offset: int) -> list[Value]:
        return load_nibbles(f, w, offset)

    def words(self, f: Function, block: Value) -> list[list[Value]]:
        return [words for run in range(4) for words in nibble_words(f, block, 16 + 32 * run)]

    def values(self, f: Function, words: Sequence[Value]) -> list[Value]:
        return wide(f, nibbles(f, words))

    def scale_words(self, f: Function, block: Value) -> list[Value]:
        return six_bits(f, block, 4)


def six_bits(f: Function, block: Value, at: int) -> list[Value]:
    """The twelve bytes at `at` as four words: eight scales, eight minima (`scales_and_minimums` of the
    codec)."""
    scale, minimum, low = (f.load(I32, block, at + 4 * i, align=1) for i in range(3))
    return [
        scale & 0x3F3F3F3F,
        (low & 0x0F0F0F0F) | ((scale >> 2) & 0x30303030),
        minimum & 0x3F3F3F3F,
        ((low >> 4) & 0x0F0F0F0F) | ((minimum >> 2) & 0x30303030),
    ]
