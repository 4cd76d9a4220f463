"""Spans' records into one, strictly from left to right, and what comes out of it.

A merge starts from an empty record, and a span in which nothing is attended leaves what it meets: how many
such spans a row passes changes no bit of its result.
"""

from __future__ import annotations

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32, F32V, LANES
from ostinato.devices.cpu.kernels.attention_shape import LOWEST, SpanShape
from ostinato.devices.cpu.kernels.math import exp2


def factor_bytes(shape: SpanShape) -> int:
    """What `merge_record` needs at `factors`."""
    return 2 * shape.lanes * 4


def empty_record(f: Function, shape: SpanShape, record: Value) -> None:
    """No scores, no sums."""
    end = shape.values_bytes
    for at, _ in f.range(0, end, 4 * LANES):
        f.store(f.zero(F32V), record, at)
    for part in range(0, shape.lanes * 4, 4 * LANES):
        f.store(f.const(F32V, LOWEST), record, end + part)
        f.store(f.zero(F32V), record, end + shape.lanes * 4 + part)


def merge_record(f: Function, shape: SpanShape, state: Value, record: Value, factors: Value) -> None:
    """The record of the next span into `state`; both weighed down to the larger of their largest scores."""
    end, lanes = shape.values_bytes, shape.lanes * 4
    for at in range(0, lanes, 4 * LANES):
        before, now = f.load(F32V, state, end + at), f.load(F32V, record, end + at)
        largest = now.max(before)
        keep, add = exp2(f, before - largest), exp2(f, now - largest)
        f.store(largest, state, end + at)
        f.store(keep, factors, at)
        f.store(add, factors, lanes + at)
        sums = f.load(F32V, state, end + lanes + at) * keep
        sums = f.fma(f.load(F32V, record, end + lanes + at), add, sums)
        f.store(sums, state, end + lanes + at)
    for n, _ in f.range(0, shape.vectors):
        keep, add = (f.broadcast(f.load(F32, factors, n * 4 + at)) for at in (0, lanes))
        for c in range(shape.columns):
            at_value = n * (shape.width * 4) + c * LANES * 4
            sums = f.fma(f.load(F32V, record, at_value), add, f.load(F32V, state, at_value) * keep)
            f.store(sums, state, at_value)


def write_result(f: Function, shape: SpanShape, state: Value, row: int, out: Value) -> None:
    """One row's `[group · v_dim]`: sums of values over sums of weights, NaN where it attends nothing, as the
    softmax of nothing but -inf is. No zero is negative: merging with nothing turns those positive."""
    for g, _ in f.range(0, shape.group):
        n = g + row * shape.group
        sums = f.broadcast(f.load(F32, state, n * 4 + (shape.values_bytes + shape.lanes * 4)))
        for c in range(shape.columns):
            value = f.load(F32V, state, n * (shape.width * 4) + c * LANES * 4) / sums + 0.0
            count = min(LANES, shape.v.dim - c * LANES)
            f.store_part(value, out, g * (shape.v.dim * 4) + c * LANES * 4, count)
