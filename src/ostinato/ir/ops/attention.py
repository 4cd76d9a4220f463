"""Causal attention over KV slabs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinato.ir.dtype import DType
from ostinato.ir.op import Composite, Value
from ostinato.ir.ops.const import Iota, Scalar, SymbolValue
from ostinato.ir.ops.nn import Softmax
from ostinato.ir.ops.product import SelectedMatMul
from ostinato.ir.ops.slab import ReadPrefix, require_length
from ostinato.ir.shape import DataDim, Dim, Length, Operand, show
from ostinato.ir.symbols import SymId

if TYPE_CHECKING:
    from ostinato.ir.graph import Node
    from ostinato.ir.tensor import Tensor


@dataclass(frozen=True)
class Attention(Composite):
    """softmax(q Kᵀ · scale) V with grouped KV heads (Ainslie et al. 2023, arXiv:2305.13245).

    Operands: q `[rows, heads, k_dim]`, K slab `[1, kv_heads, capacity, k_dim]`, V slab
    `[1, kv_heads, capacity, v_dim]`, then the operands of `start` and `length`, then with `masked` an
    additive mask `[rows, capacity]`. Result `[rows, heads · v_dim]`.

    Row i stands at position p = start + i and attends the positions j with j < length, j ≤ p and, given
    a window, j > p - window. All others are selected away before anything is computed from them, so
    whatever their cells hold (NaN included) changes nothing.
    """

    start: Length
    length: Length
    scale: float
    window: int | None = None
    masked: bool = False

    def infer(self, *inputs: Node) -> Value:
        lengths = sum(isinstance(length, Operand) for length in (self.start, self.length))
        self.require_inputs(inputs, 3 + lengths + self.masked)
        q, k, v = inputs[:3]
        self.require_dtype(q, DType.F32)
        self.require_dtype(k, DType.F32, DType.F16)
        self.require_dtype(v, DType.F32, DType.F16)
        require_length(self, self.start, inputs)
        require_length(self, self.length, inputs)
        got = ", ".join(show(node.shape) for node in inputs[:3])
        fits = len(q.shape) == 3 and len(k.shape) == 4 and len(v.shape) == 4 and k.shape[:3] == v.shape[:3]
        fits = fits and k.shape[0] == 1
        self.require(fits, "q [rows, heads, k_dim] and slabs [1, kv_heads, capacity, dim]", got)
        heads, kv_heads, v_dim = q.shape[1], k.shape[1], v.shape[3]
        fits = isinstance(heads, int) and isinstance(kv_heads, int) and q.shape[2] == k.shape[3]
        self.require(fits, "q and K of one k_dim", got)
        self.require(isinstance(v_dim, int), "a number as v_dim", got)
        assert isinstance(heads, int)
        assert isinstance(kv_heads, int)
        assert isinstance(v_dim, int)
        self.require(kv_heads > 0 and heads > 0, "at least one head and one KV head", got)
        self.require(heads % kv_heads == 0, f"a multiple of {kv_heads} heads", got)
        if self.masked:
            expected = (q.shape[0], k.shape[2])
            self.require(inputs[-1].shape == expected, f"a mask {show(expected)}", show(inputs[-1].shape))
        return Value((q.shape[0], heads * v_dim), DType.F32)

    def decompose(self, *inputs: Tensor) -> Tensor:
        q, k_slab, v_slab = inputs[:3]
        rows, heads, k_dim = q.shape
        kv_heads, v_dim = k_slab.shape[1], v_slab.shape[3]
        assert isinstance(heads, int)
        assert isinstance(kv_heads, int)
        assert isinstance(v_dim, int)
        start = _value(self.start, inputs)  # []
        k = _prefix(k_slab, self.length, inputs)  # [1, kv_heads, length, k_dim]
        v = _prefix(v_slab, self.length, inputs)  # [1, kv_heads, length, v_dim]
        k, v = k.squeeze(0).unsqueeze(1), v.squeeze(0).unsqueeze(1)  # [kv_heads, 1, length, dim]

        at = start + q.graph.apply(Iota(_extent(rows)))  # [rows]
        cells = _positions(self.length, inputs)  # [length]
        at, cells = at.unsqueeze(1), cells.unsqueeze(0)  # [rows, 1], [1, length]
        attended = cells <= at  # [rows, length]
        if self.window is not None:
            attended = attended & (at - self.window < cells)
        if self.masked:
            mask = _prefix(inputs[-1], self.length, inputs, axis=-1)  # [rows, length]
            attended = attended & (_scalar(mask, -math.inf) < mask)

        q = q.reshape(rows, kv_heads, heads // kv_heads, k_dim).transpose(
            1, 2, 0, 3
        )  # [kv, group, rows, k_dim]
        scores = q @ k.transpose(0, 1, 3, 2) * self.scale  # [kv, group, rows, length]
        if self.masked:
            scores = scores + mask
        scores = attended.where(scores, -math.inf)
        # A cell that a later row attends meets this one with a weight of 0, and 0 · inf is NaN.
        out = attended.apply(SelectedMatMul(), scores.apply(Softmax()), v)  # [kv, group, rows, v_dim]
        return out.transpose(2, 0, 1, 3).reshape(rows, heads * v_dim)  # [rows, heads · v_dim]


def _scalar(like: Tensor, value: float) -> Tensor:
    return like.graph.apply(Scalar(value, like.dtype))


def _extent(dim: Dim) -> int | SymId:
    assert not isinstance(dim, DataDim), "rows are a number or a symbol"
    return dim


def _value(length: Length, inputs: tuple[Tensor, ...]) -> Tensor:
    """A length as a rank-0 int64 tensor."""
    if isinstance(length, Operand):
        return inputs[length.index]
    leaf = SymbolValue(length) if isinstance(length, SymId) else Scalar(length, DType.I64)
    return inputs[0].graph.apply(leaf)


def _prefix(slab: Tensor, length: Length, inputs: tuple[Tensor, ...], axis: int = -2) -> Tensor:
    """The first `length` entries as float32."""
    if isinstance(length, Operand):
        return slab.apply(ReadPrefix(Operand(1), axis), inputs[length.index]).cast(DType.F32)
    return slab.apply(ReadPrefix(length, axis)).cast(DType.F32)


def _positions(length: Length, inputs: tuple[Tensor, ...]) -> Tensor:
    """0 … length-1 as int64: `[length]`."""
    if isinstance(length, Operand):
        return inputs[length.index].apply(Iota(Operand(0)))
    return inputs[0].graph.apply(Iota(length))
