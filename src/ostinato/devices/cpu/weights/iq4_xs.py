"""IQ4_XS, packed: nibbles that index IQ4_NL's steps, under a six-bit scale for each 32, widened to int8.

A unit, 2240 bytes: its head, then four pairs of blocks, 544 bytes each: `[quants 0: 256][scales 0: 16 bytes]
[scales 1][quants 1]`; the quants as in Q4_0.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I16, I32
from ostinato.devices.cpu.kernels.lookup import lookup
from ostinato.devices.cpu.weights.bits import bytes_less, load_nibbles, nibbles, wide
from ostinato.devices.cpu.weights.blocks import UnitLayout
from ostinato.devices.cpu.weights.iq4_nl import OVER, STEPS
from ostinato.devices.cpu.weights.supers32 import SuperForm32
from ostinato.ir.encoding import Encoding


class IQ4_XSForm(SuperForm32):  # noqa: N801  (ggml's name)
    """4.25 bits a weight."""

    name = "iq4_xs.r16"
    stored = Encoding("IQ4_XS:r16", 4096, 2240)
    pair = UnitLayout(544, quants=(0, 288), scales=(256, 272))
    limit = max(STEPS) + OVER
    over = OVER
    signed = True
    d = 0

    def bytes_of(self, f: Function, w: Value, offset: int) -> list[Value]:
        return [lookup(f, [step + OVER for step in STEPS], each) for each in load_nibbles(f, w, offset)]

    def words(self, f: Function, block: Value) -> list[list[Value]]:
        return [[f.load(I32, block, 8 + 16 * b + 4 * i, align=1) for i in range(4)] for b in range(8)]

    def values(self, f: Function, words: Sequence[Value]) -> list[Value]:
        return wide(f, lookup(f, STEPS, nibbles(f, words)))

    def scale_words(self, f: Function, block: Value) -> list[Value]:
        high = f.load(I16, block, 2, align=1).cast("zext", I32)
        low = f.load(I32, block, 4, align=1)
        words = []
        for first in (0, 4):
            word = f.zero(I32)
            for b in range(first, first + 4):
                scale = ((low >> (4 * b)) & 15) | (((high >> (2 * b)) & 3) << 4)
                word = word | (scale << (8 * (b - first)))
            words.append(bytes_less(word, 32))
        return words
