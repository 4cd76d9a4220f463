"""Q5_K, packed: as Q4_K, with a fifth bit.

A unit, 2880 bytes: its head, then four pairs of blocks, 704 bytes each: `[nibbles 0: 256][bits 0: 64][scales
and minima: 64][nibbles 1][bits 1]`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
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
from ostinato.devices.cpu.weights.q4_k import six_bits
from ostinato.devices.cpu.weights.supers32 import SuperForm32
from ostinato.ir.encoding import Encoding


class Q5_KForm(SuperForm32):  # noqa: N801  (ggml's name)
    """5.5 bits a weight, asymmetric."""

    name = "q5_k.r16"
    stored = Encoding("Q5_K:r16", 4096, 2880)
    pair = UnitLayout(704, quants=(0, 384), scales=(320, 336), mins=(352, 368))
    limit = 31
    d, dmin = 0, 2

    def bytes_of(self, f: Function, w: Value, offset: int) -> list[Value]:
        low, high = load_nibbles(f, w, offset), load_fields(f, w, offset + 256, bits=1, to=4)
        return [a | b for a, b in zip(low, high, strict=True)]

    def words(self, f: Function, block: Value) -> list[list[Value]]:
        low = [words for run in range(4) for words in nibble_words(f, block, 48 + 32 * run)]
        return [a + b for a, b in zip(low, field_words(f, block, 16, bits=1), strict=True)]

    def values(self, f: Function, words: Sequence[Value]) -> list[Value]:
        return wide(f, nibbles(f, words[:4]) | (fields(f, words[4:], bits=1) << 4))

    def scale_words(self, f: Function, block: Value) -> list[Value]:
        return six_bits(f, block, 4)
