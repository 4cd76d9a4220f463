"""Blocks of 32 keys or values to int8 with a scale in half precision: the rule of `device.kv_q8_0`."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32V, I8, I32V
from ostinato.devices.cpu.kernels.halves import widen
from ostinato.devices.cpu.kernels.rounding import narrow


def quantize_block(f: Function, block: Sequence[Value]) -> tuple[list[Value], Value]:
    """The vectors of one block, zeros past its elements → their int8 values, and the bits of the scale in
    every lane."""
    # The bits of a float without its sign order like the float, with NaN above infinity.
    first, *others = (value.cast("bitcast", I32V) & 0x7FFFFFFF for value in block)
    for other in others:
        first = first.max(other)
    amax = f.broadcast(f.max(first)).cast("bitcast", F32V)
    bits = narrow(f, amax / 127.0)
    d = widen(f, bits)
    usable = d.gt(0.0) & d.lt(float("inf"))
    inverse = 1.0 / d
    q = []
    for value in block:
        scaled = usable.select(value * inverse, 0.0)
        rounded = f.intrinsic("lrint", scaled, returns=I32V, suffix="v16i32.v16f32")
        q.append(rounded.max(-127).min(127).cast("trunc", I8))
    return q, bits
