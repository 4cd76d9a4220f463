"""Norms of a row: `ir.ops.nn.RmsNorm` and `LayerNorm`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32, F32V, LANES

Norm = Literal["rms", "layer"]
Normalise = Callable[[Value, Value | int, int], Value]
"""From a vector of the row, its offset in bytes and its number of elements to what the norm makes of it."""

_SUMS = 4


def _no_norm(f: Function, k: int, eps: float, norm: list[Value]) -> Normalise:
    return lambda value, offset, count: value


def _rms_norm(f: Function, k: int, eps: float, norm: list[Value]) -> Normalise:
    """x · (1 / sqrt(mean(x²) + eps)) · w."""
    (weight,) = norm
    squares = _total(f, k, lambda total, x, count: f.fma(x, x, total))
    scale = _scale(f, k, eps, squares)

    def normalise(value: Value, offset: Value | int, count: int) -> Value:
        return value * scale * f.load_part(F32V, weight, offset, count)

    return normalise


def _layer_norm(f: Function, k: int, eps: float, norm: list[Value]) -> Normalise:
    """(x - mean) · (1 / sqrt(variance + eps)) · w + b, the variance from the centred row."""
    weight, bias = norm
    mean = f.broadcast(_total(f, k, lambda total, x, count: total + x) / float(k))

    def add_square(total: Value, x: Value, count: int) -> Value:
        centred = x - mean
        if count < LANES:
            centred = f.first_lanes(LANES, count).select(centred, 0.0)
        return f.fma(centred, centred, total)

    scale = _scale(f, k, eps, _total(f, k, add_square))

    def normalise(value: Value, offset: Value | int, count: int) -> Value:
        scaled = (value - mean) * scale
        part = f.load_part(F32V, weight, offset, count), f.load_part(F32V, bias, offset, count)
        return f.fma(scaled, *part)

    return normalise


NORMS: Mapping[Norm | None, Callable[[Function, int, float, list[Value]], Normalise]] = {
    None: _no_norm,
    "rms": _rms_norm,
    "layer": _layer_norm,
}


def _scale(f: Function, k: int, eps: float, squares: Value) -> Value:
    """1 / sqrt(squares / k + eps) in every lane."""
    root = f.intrinsic("sqrt", squares / float(k) + eps)
    return f.broadcast(f.const(F32, 1.0) / root)


def _total(f: Function, k: int, add: Callable[[Value, Value, int], Value]) -> Value:
    """The row at f["x"] added up: its vector i into sum i % 4, then the sums in pairs, then the lanes."""
    full, tail = divmod(k, LANES)
    turns = full // _SUMS
    names = [f"sum{j}" for j in range(_SUMS)]
    sums = [f.zero(F32V)] * _SUMS
    if turns:
        for i, s in f.range(0, turns * 64 * _SUMS, 64 * _SUMS, **dict(zip(names, sums, strict=True))):
            for j, name in enumerate(names):
                s[name] = add(s[name], f.load(F32V, f["x"], i + 64 * j), LANES)
        sums = [s[name] for name in names]
    for at in range(turns * _SUMS, full + (tail > 0)):
        count = LANES if at < full else tail
        sums[at % _SUMS] = add(sums[at % _SUMS], f.load_part(F32V, f["x"], 64 * at, count), count)
    return f.sum((sums[0] + sums[1]) + (sums[2] + sums[3]))
