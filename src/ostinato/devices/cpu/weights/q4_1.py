"""Q4_1, packed: nibbles under a scale and a minimum.

A unit, 640 bytes: `[quants 0: 256][scales 0: 16 f16][minima 0: 16 f16][quants 1][scales 1][minima 1]`; the
quants as in Q4_0.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.weights.bits import nibbles, wide
from ostinato.devices.cpu.weights.blocks import UnitLayout
from ostinato.devices.cpu.weights.q4_0 import NibbleForm
from ostinato.ir.encoding import Encoding


class Q4_1Form(NibbleForm):  # noqa: N801  (ggml's name)
    """5 bits a weight, asymmetric."""

    name = "q4_1.r16"
    stored = Encoding("Q4_1:r16", 1024, 640)
    unit = UnitLayout(640, quants=(0, 320), scales=(256, 576), mins=(288, 608))
    over = 0

    def values(self, f: Function, words: Sequence[Value]) -> list[Value]:
        return wide(f, nibbles(f, words))
