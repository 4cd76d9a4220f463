"""IQ4_NL, packed: nibbles that index a table of steps; products have the steps with 128 too much.

A unit, 576 bytes, is laid out as Q4_0's.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.kernels.lookup import lookup
from ostinato.devices.cpu.weights.bits import load_nibbles, nibbles, wide
from ostinato.devices.cpu.weights.blocks import UnitLayout
from ostinato.devices.cpu.weights.q4_0 import NibbleForm
from ostinato.formats.encodings import iq4_nl
from ostinato.ir.encoding import Encoding

STEPS: list[int] = iq4_nl.STEPS.tolist()
OVER = 128


class IQ4_NLForm(NibbleForm):  # noqa: N801  (ggml's name)
    """4.5 bits a weight."""

    name = "iq4_nl.r16"
    stored = Encoding("IQ4_NL:r16", 1024, 576)
    unit = UnitLayout(576, quants=(0, 320), scales=(256, 288))
    limit = max(STEPS) + OVER
    over = OVER

    def bytes_of(self, f: Function, w: Value, offset: int) -> list[Value]:
        return [lookup(f, [step + OVER for step in STEPS], each) for each in load_nibbles(f, w, offset)]

    def values(self, f: Function, words: Sequence[Value]) -> list[Value]:
        return wide(f, lookup(f, STEPS, nibbles(f, words)))
