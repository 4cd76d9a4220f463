"""Q2_K, packed: two bits under a four-bit scale and minimum for each 16.

A unit, 1344 bytes: its head, then four pairs of blocks, 320 bytes each: `[quants 0: 128][scales 0: 16 times 2
bytes][scales 1][quants 1]`. The scale bytes are the file's: a scale in the low half, a minimum in the high.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I16
from ostinato.devices.cpu.weights.bits import field_words, fields, load_fields, wide
from ostinato.devices.cpu.weights.blocks import UnitLayout
from ostinato.devices.cpu.weights.supers16 import SuperForm16
from ostinato.ir.encoding import Encoding


class Q2_KForm(SuperForm16):  # noqa: N801  (ggml's name)
    """2.625 bits a weight, asymmetric."""

    name = "q2_k.r16"
    stored = Encoding("Q2_K:r16", 4096, 1344)
    pair = UnitLayout(320, quants=(0, 192), scales=(128, 160))
    limit = 3
    d, dmin = 80, 82

    def bytes_of(self, f: Function, w: Value, offset: int) -> list[Value]:
        return load_fields(f, w, offset, bits=2)

    def words(self, f: Function, block: Value) -> list[list[Value]]:
        return [words for run in range(2) for words in field_words(f, block, 16 + 32 * run, bits=2)]

    def values(self, f: Function, words: Sequence[Value]) -> list[Value]:
        return wide(f, fields(f, words, bits=2))

    def widened(self, scales: Value) -> list[Value]:
        return [(scales & 15).cast("zext", I16), (scales >> 4).cast("zext", I16)]

    def scale_pairs(self, f: Function, block: Value) -> Sequence[Value]:
        return [f.load(I16, block, 2 * b, align=1) for b in range(8)]
