"""Q5_1, packed: five bits under a scale and a minimum.

A unit, 768 bytes: `[nibbles 0: 256][bits 0: 64][scales 0: 16 f16][minima 0: 16 f16][nibbles 1][bits 1]
[scales 1][minima 1]`; nibbles and bits as in Q5_0.
"""

from __future__ import annotations

from ostinato.devices.cpu.weights.blocks import UnitLayout
from ostinato.devices.cpu.weights.q5_0 import FiveBitForm
from ostinato.ir.encoding import Encoding


class Q5_1Form(FiveBitForm):  # noqa: N801  (ggml's name)
    """6 bits a weight, asymmetric."""

    name = "q5_1.r16"
    stored = Encoding("Q5_1:r16", 1024, 768)
    unit = UnitLayout(768, quants=(0, 384), scales=(320, 704), mins=(352, 736))
    over = 0
