"""A numpy function for each primitive op.

A kernel takes the op, the symbols' values and its operands, and returns the result. Only the slab writes
change an operand, and only ops that say so (`Op.may_alias`) return a view of one. Sums accumulate in
float64, products are BLAS's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.errors.device import IndexOutOfRange
from ostinato.ir.op import Primitive
from ostinato.ir.ops import const, elementwise, movement, product, quantize, reduce, slab
from ostinato.ir.shape import Length, Operand, resolve
from ostinato.ir.symbols import SymEnv

Array = npt.NDArray[Any]
Kernel = Callable[..., Array]  # (op, env, *operands)


def _select(condition: Array, yes: Array, no: Array) -> Array:
    chosen: Array = np.where(condition, yes, no)
    return chosen


def _length(length: Length, env: SymEnv, operands: tuple[Array, ...]) -> int:
    return int(operands[length.index]) if isinstance(length, Operand) else env.resolve(length)


def _slice_index(op: movement.Slice, ndim: int) -> tuple[slice, ...]:
    return (slice(None),) * (op.axis % ndim) + (slice(op.start, op.stop),)


def check_rows(op: Primitive, rows: Array, size: int) -> Array:
    """The row indices; raises IndexOutOfRange unless all lie in 0 … size-1."""
    if rows.size and (rows.min() < 0 or rows.max() >= size):
        raise IndexOutOfRange(op.name, int(rows.min() if rows.min() < 0 else rows.max()), size)
    return rows


def check_span(op: Primitive, start: int, count: int, size: int) -> None:
    """Raises IndexOutOfRange unless start … start+count-1 lie in 0 … size-1."""
    if not 0 <= start <= start + count <= size:
        raise IndexOutOfRange(op.name, start if start < 0 else start + count - 1, size)


def _write(op: Primitive, target: Array, rows: Array, start: int, count: int) -> Array:
    """rows `[rows, kv_heads, d]` into `target[0, :, start : start+count]`; out of range writes nothing."""
    check_span(op, start, count, target.shape[2])
    check_span(op, 0, count, rows.shape[0])
    target[0, :, start : start + count] = rows[:count].transpose(1, 0, 2)
    return target


def _prefix(op: slab.ReadPrefix, source: Array, length: int) -> Array:
    axis = source.ndim + op.axis
    check_span(op, 0, length, source.shape[axis])
    view: Array = source[(slice(None),) * axis + (slice(0, length),)]
    return view


def selected_product(lanes: Array, weights: Array, values: Array) -> Array:
    """`SelectedMatMul`. A weight of 0 doesn't keep NaN out, and 0 · inf is NaN, so a finite product has met
    neither and stands; otherwise each row gets back what its own lanes hold."""
    product: Array = np.matmul(weights, values)
    if np.isfinite(product).all():
        return product
    finite = np.isfinite(values)
    product = np.matmul(weights, np.where(finite, values, np.float32(0)))
    nan = _any_lane(lanes, np.isnan(values)) | _any_lane(lanes & (weights == 0), ~finite)
    for special in (np.inf, -np.inf):
        product += np.where(_any_lane(lanes, values == special), np.float32(special), np.float32(0))
    product[nan] = np.nan
    return product


def _any_lane(lanes: Array, hits: Array) -> Array:
    """Whether any lane k with `lanes[..., m, k]` has `hits[..., k, n]`."""
    hit: Array = np.matmul(lanes.astype(np.float32), hits.astype(np.float32)) > 0
    return hit


def rounded_to_bf16(x: Array) -> Array:
    """`RoundBF16`."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    nearest = bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))
    nearest = np.where(np.isnan(x), bits | np.uint32(0x400000), nearest)  # rounding could make it infinite
    result: Array = (nearest & np.uint32(0xFFFF0000)).view(np.float32)
    return result


def quantized(block: int, x: Array) -> Array:
    """`QuantizeRows`."""
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // block, block)
    amax = np.abs(blocks).max(-1, keepdims=True)
    inverse = np.float32(127) / amax
    inverse[~np.isfinite(inverse)] = 0
    d = amax * np.float32(1 / 127)
    result: Array = d * _integers(blocks * inverse)
    at = np.nonzero(_larger(d[..., 0]))
    further, scale = blocks[at] - result[at], d[at]
    result[at] += scale * np.float32(1 / 254) * _integers(further * (np.float32(254) / scale))
    return result.reshape(x.shape)


def _integers(x: Array) -> Array:
    return np.rint(x) + np.float32(0)  # an integer has no -0


def _larger(d: Array) -> npt.NDArray[np.bool_]:
    """Of scales `[..., n]`, those of the blocks that are rounded further."""
    n = d.shape[-1]
    squares = d * d
    turns = np.zeros((*d.shape[:-1], -(-n // 4) * 4), np.float32)
    turns[..., :n] = squares
    turns = turns.reshape(*d.shape[:-1], -(-n // 4), 4)
    sums = turns.cumsum(-2, dtype=np.float32)[..., -1, :]  # added one after another
    total = (sums[..., 0] + sums[..., 1]) + (sums[..., 2] + sums[..., 3])
    limit = np.maximum(total * np.float32(quantize.FURTHER / n), np.float32(quantize.LEAST))
    found: npt.NDArray[np.bool_] = (squares >= limit[..., None]) & np.isfinite(total)[..., None]
    return found


KERNELS: dict[type[Primitive], Kernel] = {
    const.Scalar: lambda op, env: np.asarray(op.value, op.dtype.numpy),
    const.SymbolValue: lambda op, env: np.asarray(env.resolve(op.symbol), np.int64),
    const.Iota: lambda op, env, *n: np.arange(_length(op.extent, env, n), dtype=np.int64),
    elementwise.Add: lambda op, env, a, b: np.add(a, b),
    elementwise.Sub: lambda op, env, a, b: np.subtract(a, b),
    elementwise.Mul: lambda op, env, a, b: np.multiply(a, b),
    elementwise.Div: lambda op, env, a, b: np.divide(a, b),
    elementwise.Less: lambda op, env, a, b: np.less(a, b),
    elementwise.LessEqual: lambda op, env, a, b: np.less_equal(a, b),
    elementwise.And: lambda op, env, a, b: np.logical_and(a, b),
    elementwise.Where: lambda op, env, condition, yes, no: _select(condition, yes, no),
    elementwise.Neg: lambda op, env, x: np.negative(x),
    elementwise.Exp: lambda op, env, x: np.exp(x),
    elementwise.Tanh: lambda op, env, x: np.tanh(x),
    elementwise.Sqrt: lambda op, env, x: np.sqrt(x),
    elementwise.Cast: lambda op, env, x: x.astype(op.dtype.numpy),
    reduce.Sum: lambda op, env, x: x.sum(op.axis, dtype=np.float64, keepdims=True).astype(np.float32),
    reduce.Max: lambda op, env, x: x.max(op.axis, keepdims=True),
    reduce.ArgMax: lambda op, env, x: x.argmax(-1),  # numpy's rule for equals is the lowest index too
    movement.Reshape: lambda op, env, x: x.reshape(resolve(op.shape, env)),
    movement.Transpose: lambda op, env, x: x.transpose(op.order),
    movement.Unsqueeze: lambda op, env, x: x[(slice(None),) * op.axis + (None,)],
    movement.Squeeze: lambda op, env, x: x.squeeze(op.axis),
    movement.Slice: lambda op, env, x: x[_slice_index(op, x.ndim)],
    movement.Concat: lambda op, env, *xs: np.concatenate(xs, op.axis),
    movement.Gather: lambda op, env, table, rows: table[check_rows(op, rows, table.shape[0])],
    movement.Clone: lambda op, env, x: x.copy(),
    product.MatMul: lambda op, env, a, b: np.matmul(a, b),
    product.SelectedMatMul: lambda op, env, lanes, a, b: selected_product(lanes, a, b),
    quantize.RoundBF16: lambda op, env, x: rounded_to_bf16(x),
    quantize.QuantizeRows: lambda op, env, x: quantized(op.block, x),
    slab.WriteSlice: lambda op, env, s, rows: _write(
        op, s, rows, env.resolve(op.start), env.resolve(op.count)
    ),
    slab.WriteSliceDevice: lambda op, env, s, rows, start, count: _write(op, s, rows, int(start), int(count)),
    slab.ReadPrefix: lambda op, env, s, *n: _prefix(op, s, _length(op.length, env, (s, *n))),
}
