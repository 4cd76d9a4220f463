"""float32 rounded to 16 bits."""

from __future__ import annotations

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F16, I16, I32

_REBIAS = (127 - 15) << 23
"""From a half's exponent, moved up to a float's place, to the float's own."""


def narrow(f: Function, singles: Value) -> Value:
    """The bits (i16) of the nearest halves, ties to even; beyond 65504 infinity where that is nearer.

    In integers where the set has no instruction for it, since LLVM would call a function that not every
    system has.
    """
    lanes = singles.type.lanes
    if "f16c" in f.module.isa.requires or f.module.isa.arch == "aarch64":
        return singles.cast("fptrunc", F16).cast("bitcast", I16.x(lanes))
    word = I32.x(lanes)
    bits = singles.cast("bitcast", word)
    size = bits & 0x7FFFFFFF
    odd = (size >> 13) & 1
    normal = (size - _REBIAS + 0xFFF + odd) >> 13
    # 0.5 + x: its last bit is worth what a subnormal half's last bit is.
    start = f.const(singles.type, 0.5)
    tiny = (size.cast("bitcast", singles.type) + start).cast("bitcast", word) - start.cast("bitcast", word)
    nan = f.const(word, 0x7F800000).lt(size)
    special = nan.select(f.const(word, 0x7E00), 0x7C00)
    found = size.below(0x38800000).select(tiny, size.below(0x47800000).select(normal, special))
    return (found | ((bits >> 16) & 0x8000)).cast("trunc", I16)


def nearest_brain(f: Function, singles: Value) -> Value:
    """The nearest bfloat16s, as `ir.ops.quantize.RoundBF16` says: their bits (i32) as floats have them, the
    lower half zero."""
    bits = singles.cast("bitcast", I32.x(singles.type.lanes))
    nearest = bits + (((bits >> 16) & 1) + 0x7FFF)
    nan = (bits & 0x7FFFFFFF).gt(0x7F800000)  # rounding could make it infinite
    return nan.select(bits | 0x400000, nearest) & -0x10000
