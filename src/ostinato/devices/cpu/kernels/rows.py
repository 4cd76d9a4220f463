"""Rows as products take them: normalised if asked, and float32 or quantised.

A float row is float32 [k]. A quantised row is int8 q [K], K being k rounded up to 64 with zeros, and then for
each 32 elements a record of 16 bytes: float32 d, float32 d·sum(q), int32 -8·sum(q), int32 -128·sum(q). An
element stands for d·q; the sums are what products with offset weights start from. With `RowSpec.sums` there
follow the sums of each 16 elements, int16, for weights that have a scale for each 16.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32, F32V, LANES, VOID
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.kernels.quantize import BLOCK, META_BYTES, quantize_blocks

_UNIT = 64
_CHUNK = 4 * BLOCK
_SUM = 16
"""Elements of one of the further sums."""
_SUMS = 4

Norm = Literal["rms", "layer"]
_Normalise = Callable[[Value, Value | int, int], Value]


@dataclass(frozen=True)
class RowSpec:
    """What a row of `k` elements goes through: `ir.ops.nn.RmsNorm` or `LayerNorm`, then `QuantizeRows`."""

    k: int
    norm: Norm | None = None
    eps: float = 0.0
    quantize: bool = False
    sums: bool = False

    @property
    def norm_params(self) -> tuple[str, ...]:
        """The operands of the norm."""
        return {None: (), "rms": ("norm_weight",), "layer": ("norm_weight", "norm_bias")}[self.norm]


def padded(k: int) -> int:
    """Elements of a quantised row: its int8 part ends here, and its records start."""
    return -(-k // _UNIT) * _UNIT


def row_bytes(spec: RowSpec) -> int:
    """Bytes of one prepared row."""
    if not spec.quantize:
        return 4 * spec.k
    return _sums_at(spec) + (padded(spec.k) // _SUM * 2 if spec.sums else 0)


def _sums_at(spec: RowSpec) -> int:
    return padded(spec.k) + padded(spec.k) // BLOCK * META_BYTES


def prepare_row(
    f: Function, spec: RowSpec, x: Value, norm: Sequence[Value], out: Value, *, dequantized: bool = False
) -> None:
    """Prepare the float32 row at `x` into `out`; nothing past its `k` elements is read.

    `norm` are the addresses of weight and bias, as many as the norm has. `dequantized`: d·q as float32, not
    as the quantised row. All callers in a module share one function: a row gets the same bits everywhere.
    """
    digest = hashlib.sha256(repr(spec).encode()).hexdigest()[:12]
    name = f"prepare_row_{'dequantized_' if dequantized else ''}{digest}"
    if name not in f.module:
        params = ", ".join(f"ptr {param}" for param in ("x", *spec.norm_params, "out"))
        g = f.module.function(name, params, exported=False)
        _write(g, spec, [g[param] for param in spec.norm_params], dequantized)
        g.ret()
    f.call(name, VOID, x, *norm, out)


@dataclass(frozen=True)
class PrepareRows(Kernel):
    """`prepare_row` of rows that lie `x_stride` elements apart, one after another. An item is a row."""

    spec: RowSpec
    x_stride: int
    dequantized: bool = False

    @property
    def params(self) -> tuple[str, ...]:
        return ("x", *self.spec.norm_params, "out")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        norm = [args[param] for param in self.spec.norm_params]
        out_stride = 4 * self.spec.k if self.dequantized else row_bytes(self.spec)
        for i, _ in f.range(f["low"], f["high"]):
            x, out = f.at(args["x"], i * (4 * self.x_stride)), f.at(args["out"], i * out_stride)
            prepare_row(f, self.spec, x, norm, out, dequantized=self.dequantized)


def _write(f: Function, spec: RowSpec, norm: list[Value], dequantized: bool) -> None:
    normalise = _NORMS[spec.norm](f, spec, norm)

    def values(offset: Value | int, first: int, count: int) -> list[Value]:
        """Vectors of the elements from `first` on, `offset` bytes into the row; zeros past its end."""
        parts = [min(LANES, max(0, spec.k - first - LANES * j)) for j in range(count)]
        return [
            normalise(f.load_part(F32V, f["x"], offset + 64 * j, part), offset + 64 * j, part)
            if part
            else f.zero(F32V)
            for j, part in enumerate(parts)
        ]

    per_turn = _CHUNK // LANES
    full = spec.k // _CHUNK
    rest = padded(spec.k) - full * _CHUNK
    for i, _ in f.range(0, full):
        _store(f, spec, values(i * (4 * _CHUNK), 0, per_turn), i, _CHUNK, dequantized)
    if rest:
        last = values(full * 4 * _CHUNK, full * _CHUNK, rest // LANES)
        _store(f, spec, last, f.index(full), spec.k - full * _CHUNK, dequantized)


def _store(
    f: Function, spec: RowSpec, values: list[Value], chunk: Value, count: int, dequantized: bool
) -> None:
    """`count` elements of the chunk; a quantised row gets all of `values`."""
    if spec.quantize:
        meta = f.at(f["out"], chunk * (4 * META_BYTES) + padded(spec.k))
        blocks = quantize_blocks(f, values)
        if not dequantized:
            blocks.store(f.at(f["out"], chunk * _CHUNK), meta)
            if spec.sums:
                blocks.store_sums(f.at(f["out"], chunk * (_CHUNK // _SUM * 2) + _sums_at(spec)))
            return
        values = blocks.values()
    for j, value in enumerate(values):
        part = min(LANES, max(0, count - LANES * j))
        f.store_part(value, f["out"], chunk * (4 * _CHUNK) + 64 * j, part)


def _no_norm(f: Function, spec: RowSpec, norm: list[Value]) -> _Normalise:
    return lambda value, offset, count: value


def _rms_norm(f: Function, spec: RowSpec, norm: list[Value]) -> _Normalise:
    """x · (1 / sqrt(mean(x²) + eps)) · w."""
    (weight,) = norm
    squares = _total(f, spec.k, lambda total, x, count: f.fma(x, x, total))
    scale = _scale(f, spec, squares)

    def normalise(value: Value, offset: Value | int, count: int) -> Value:
        return value * scale * f.load_part(F32V, weight, offset, count)

    return normalise


def _layer_norm(f: Function, spec: RowSpec, norm: list[Value]) -> _Normalise:
    """(x - mean) · (1 / sqrt(variance + eps)) · w + b, the variance from the centred row."""
    weight, bias = norm
    mean = f.broadcast(_total(f, spec.k, lambda total, x, count: total + x) / float(spec.k))

    def add_square(total: Value, x: Value, count: int) -> Value:
        centred = x - mean
        if count < LANES:
            centred = f.first_lanes(LANES, count).select(centred, 0.0)
        return f.fma(centred, centred, total)

    scale = _scale(f, spec, _total(f, spec.k, add_square))

    def normalise(value: Value, offset: Value | int, count: int) -> Value:
        scaled = (value - mean) * scale
        part = f.load_part(F32V, weight, offset, count), f.load_part(F32V, bias, offset, count)
        return f.fma(scaled, *part)

    return normalise


_NORMS: dict[Norm | None, Callable[[Function, RowSpec, list[Value]], _Normalise]] = {
    None: _no_norm,
    "rms": _rms_norm,
    "layer": _layer_norm,
}


def _scale(f: Function, spec: RowSpec, squares: Value) -> Value:
    """1 / sqrt(squares / k + eps) in every lane."""
    root = f.intrinsic("sqrt", squares / float(spec.k) + spec.eps)
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
