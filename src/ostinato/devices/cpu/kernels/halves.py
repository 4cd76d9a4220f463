"""16-bit floats as f32, exactly."""

from __future__ import annotations

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F16, F32, I32

_SMALLEST_NORMAL = 113 << 23
"""The bits of 2^-14 in f32: f16's least normal number."""


def widen(f: Function, bits: Value) -> Value:
    """The f32 of IEEE half floats, given as i16: scalar or vector.

    The sets with fma have an instruction for it. For the others it is written in integers, since LLVM would
    call a function that not every system has.
    """
    lanes = bits.type.lanes
    if f.module.isa.fma:
        return bits.cast("bitcast", F16.x(lanes)).cast("fpext", F32)
    wide = bits.cast("zext", I32)
    magnitude = (wide & 0x7FFF) << 13
    normal = magnitude + (112 << 23)
    normal = (wide & 0x7C00).eq(0x7C00).select(normal + (112 << 23), normal)  # infinities and NaN
    # Without an exponent: given the least normal one, and then less it.
    start = f.const(F32.x(lanes), 2.0**-14)
    tiny = (magnitude + _SMALLEST_NORMAL).cast("bitcast", F32.x(lanes)) - start
    value = (wide & 0x7C00).eq(0).select(tiny.cast("bitcast", I32.x(lanes)), normal)
    return (value | ((wide & 0x8000) << 16)).cast("bitcast", F32.x(lanes))


def widen_brain(bits: Value) -> Value:
    """The f32 of bfloat16s, given as i16: its upper half."""
    return (bits.cast("zext", I32) << 16).cast("bitcast", F32.x(bits.type.lanes))
