"""MXFP4, packed: nibbles that index ggml's doubled E2M1 values, which products have with 16 too much.

A unit, 544 bytes: `[quants 0: 256][exponents 0: 16 bytes][exponents 1][quants 1]`; the quants as in Q4_0.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32, I8, I32
from ostinato.devices.cpu.kernels.lookup import lookup
from ostinato.devices.cpu.weights.bits import load_nibbles, nibbles, wide
from ostinato.devices.cpu.weights.blocks import UnitLayout
from ostinato.devices.cpu.weights.q4_0 import NibbleForm
from ostinato.formats.encodings.mxfp4 import DOUBLED_E2M1
from ostinato.ir.encoding import Encoding

_VALUES: list[int] = DOUBLED_E2M1.tolist()
_OVER = 16


class MXFP4Form(NibbleForm):
    """4.25 bits a weight."""

    name = "mxfp4.r16"
    stored = Encoding("MXFP4:r16", 1024, 544)
    unit = UnitLayout(544, quants=(0, 288), scales=(256, 272))
    limit = max(_VALUES) + _OVER
    over = _OVER
    scale_type = I8

    def bytes_of(self, f: Function, w: Value, offset: int) -> list[Value]:
        return [lookup(f, [value + _OVER for value in _VALUES], each) for each in load_nibbles(f, w, offset)]

    def values(self, f: Function, words: Sequence[Value]) -> list[Value]:
        return wide(f, lookup(f, _VALUES, nibbles(f, words)))

    def scale(self, f: Function, bits: Value) -> Value:
        """2^(e - 128): the f32 of exponent field e - 1, and two subnormal ones."""
        e = bits.cast("zext", I32)
        found = e.gt(1).select((e - 1) << 23, (e + 1) << 21)
        return found.cast("bitcast", F32.x(bits.type.lanes))
