"""Rows as products take them: normalised if asked, and float32, bfloat16 or quantised.

A float row is float32 [k], a bfloat16 row that, with a zero more where k is odd. A quantised row is int8 q
[K], K being k rounded up to 64 with zeros, and then for each 32 elements a record of 16 bytes: float32 d,
float32 d·sum(q), int32 -8·sum(q), int32 rest. An element stands for d·q; the sums are what products with
offset weights start from. With `RowSpec.sums` there follow the sums of each 16 elements, int16, for weights
that have a scale for each 16.

`rest` is 0, or for a block that is rounded further where what is left of it lies, in bytes from the row's
start: int8 [32], a record like the others, two sums of 16. A product adds what the block gives, and then
what its rest gives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Carried, Function, Value
from ostinato.devices.cpu.emit.types import F32, F32V, I8, I16, I32, LANES, VOID
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.kernels.norms import NORMS, Norm
from ostinato.devices.cpu.kernels.quantize import (
    BLOCK,
    META_BYTES,
    Blocks,
    further_blocks,
    limit_of,
    quantize_blocks,
)
from ostinato.devices.cpu.kernels.rounding import nearest_brain
from ostinato.ir.ops.quantize import FURTHER, QuantizeRows, RoundBF16, Rounding

INT8, BRAIN = QuantizeRows(BLOCK), RoundBF16()
"""The roundings that there are rows for."""
UNIT = 64
"""Elements that a quantised row is filled up to."""
SUM = 16
"""Elements of one of the sums that weights with a scale for each 16 need."""
REST_BYTES, REST_RECORD, REST_SUMS = 64, 32, 48
"""Of the rest of a block: its size, and where in it its record and its sums are."""
REST_AT = 12
"""Where in a record the place of the block's rest is."""
_CHUNK = 4 * BLOCK

_Values = Callable[[Value, int, int], list[Value]]


@dataclass(frozen=True)
class RowSpec:
    """What a row of `k` elements goes through: `ir.ops.nn.RmsNorm` or `LayerNorm`, then a rounding."""

    k: int
    norm: Norm | None = None
    eps: float = 0.0
    rounding: Rounding | None = None
    sums: bool = False

    @property
    def norm_params(self) -> tuple[str, ...]:
        """The operands of the norm."""
        return {None: (), "rms": ("norm_weight",), "layer": ("norm_weight", "norm_bias")}[self.norm]


def padded(k: int) -> int:
    """Elements of a quantised row: its int8 part ends here, and its records start."""
    return -(-k // UNIT) * UNIT


def brain_pairs(k: int) -> int:
    """Pairs of bfloat16 that hold k of them."""
    return -(-k // 2)


def row_bytes(spec: RowSpec) -> int:
    """Bytes of one prepared row."""
    if spec.rounding != INT8:
        return 4 * (brain_pairs(spec.k) if spec.rounding == BRAIN else spec.k)
    # Those that are rounded further have FURTHER times the mean each: there can be no more of them.
    return _rests_at(spec) + int(_blocks(spec) / FURTHER) * REST_BYTES


def _blocks(spec: RowSpec) -> int:
    return -(-spec.k // BLOCK)


def _sums_at(spec: RowSpec) -> int:
    return padded(spec.k) + padded(spec.k) // BLOCK * META_BYTES


def _rests_at(spec: RowSpec) -> int:
    end = _sums_at(spec) + (padded(spec.k) // SUM * 2 if spec.sums else 0)
    return -(-end // REST_BYTES) * REST_BYTES


def prepare_row(
    f: Function, spec: RowSpec, x: Value, norm: Sequence[Value], out: Value, *, dequantized: bool = False
) -> None:
    """Prepare the float32 row at `x` into `out`; nothing past its `k` elements is read.

    `norm` are the addresses of weight and bias, as many as the norm has. `dequantized`: what a rounded row
    stands for, as float32. All callers in a module share one function: a row gets the same bits everywhere.
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
    normalise = NORMS[spec.norm](f, spec.k, spec.eps, norm)

    def values(offset: Value | int, first: int, count: int) -> list[Value]:
        """Vectors of the elements from `first` on, `offset` bytes into the row; zeros past its end."""
        parts = [min(LANES, max(0, spec.k - first - LANES * j)) for j in range(count)]
        return [
            normalise(f.load_part(F32V, f["x"], offset + 64 * j, part), offset + 64 * j, part)
            if part
            else f.zero(F32V)
            for j, part in enumerate(parts)
        ]

    if spec.rounding == INT8 and not dequantized:
        _write_quantized(f, spec, values)
    elif spec.rounding == BRAIN and not dequantized:
        _write_brain(f, spec, values)
    else:
        _write_floats(f, spec, values)


def _write_quantized(f: Function, spec: RowSpec, values: _Values) -> None:
    out, records, sums = f["out"], f.at(f["out"], padded(spec.k)), f.at(f["out"], _sums_at(spec))

    def store(chunk: Value, first: int, count: int, s: Carried) -> None:
        blocks = quantize_blocks(f, values(chunk * (4 * _CHUNK), first, count // LANES))
        blocks.store(f.at(out, chunk * _CHUNK), f.at(records, chunk * (_CHUNK // BLOCK * META_BYTES)))
        if spec.sums:
            blocks.store_sums(f.at(sums, chunk * (_CHUNK // SUM * 2)))
        s.squares = s.squares + blocks.d * blocks.d

    squares = _each_chunk(f, spec.k, padded(spec.k), store, squares=f.zero(F32V)).squares
    limit = limit_of(f, squares, _blocks(spec))

    def round_further(b: Value, first: int, rest: Value) -> Value:
        """Block `b`, if it is one to be, its rest `rest` bytes into the row. Where the next rest goes."""
        record = f.at(records, b * META_BYTES)
        d = f.load(F32, record)

        def store_rest(at: list[Value]) -> list[Value]:
            scale, q = f.broadcast(d), f.at(out, b * BLOCK)
            left = []
            for j, x in enumerate(values(b * (4 * BLOCK), first, BLOCK // LANES)):
                rounded = f.load(I8.x(LANES), q, LANES * j).cast("sext", I32).cast("sitofp", F32)
                left.append(x - rounded * scale)
            blocks, place = further_blocks(f, left, scale), f.at(out, at[0])
            blocks.store(place, f.at(place, REST_RECORD))
            if spec.sums:
                blocks.store_sums(f.at(place, REST_SUMS))
            f.store(at[0].cast("trunc", I32), record, REST_AT)
            return [at[0] + REST_BYTES]

        return f.seldom((d * d).ge(limit), [rest], store_rest)[0]

    whole, start = spec.k // BLOCK, f.index(_rests_at(spec))
    for b, s in f.range(0, whole, 1, rest=start):
        s.rest = round_further(b, 0, s.rest)
    if spec.k % BLOCK:
        round_further(f.index(whole), whole * BLOCK, s.rest)


def _write_brain(f: Function, spec: RowSpec, values: _Values) -> None:
    def store(chunk: Value, first: int, count: int, s: Carried) -> None:
        for j, x in enumerate(values(chunk * (4 * _CHUNK), first, -(-count // LANES))):
            upper = (nearest_brain(f, x) >> 16).cast("trunc", I16)
            f.store_part(upper, f["out"], chunk * (2 * _CHUNK) + 32 * j, min(LANES, count - LANES * j))

    _each_chunk(f, spec.k, 2 * brain_pairs(spec.k), store)


def _write_floats(f: Function, spec: RowSpec, values: _Values) -> None:
    """The elements, or what they stand for when they are rounded."""

    def blocks(chunk: Value, first: int, count: int) -> tuple[list[Value], Blocks]:
        x = values(chunk * (4 * _CHUNK), first, -(-count // UNIT) * UNIT // LANES)
        return x, quantize_blocks(f, x)

    def add(chunk: Value, first: int, count: int, s: Carried) -> None:
        d = blocks(chunk, first, count)[1].d
        s.squares = s.squares + d * d

    if spec.rounding == INT8:
        squares = _each_chunk(f, spec.k, spec.k, add, squares=f.zero(F32V)).squares
        limit = f.broadcast(limit_of(f, squares, _blocks(spec)))

    def store(chunk: Value, first: int, count: int, s: Carried) -> None:
        if spec.rounding == INT8:
            x, rounded = blocks(chunk, first, count)
            x = rounded.with_rest(x, limit)
        else:
            x = values(chunk * (4 * _CHUNK), first, -(-count // LANES))
        if spec.rounding == BRAIN:
            x = [nearest_brain(f, value).cast("bitcast", F32V) for value in x]
        for j in range(-(-count // LANES)):
            f.store_part(x[j], f["out"], chunk * (4 * _CHUNK) + 64 * j, min(LANES, count - LANES * j))

    _each_chunk(f, spec.k, spec.k, store)


def _each_chunk(
    f: Function, k: int, end: int, body: Callable[[Value, int, int, Carried], None], **carried: Value
) -> Carried:
    """`body(chunk, first, count, s)` for k elements, filled up to `end`, _CHUNK at a time. `first` is 0 in
    the loop over whole chunks, and in the last one the number of its first element."""
    full = k // _CHUNK
    rest = end - full * _CHUNK
    for i, s in f.range(0, full, 1, **carried):
        body(i, 0, _CHUNK, s)
    if rest:
        body(f.index(full), full * _CHUNK, rest, s)
    return s
