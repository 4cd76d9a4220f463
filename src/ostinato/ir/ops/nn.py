"""Composite ops of transformer blocks; each `decompose` is its definition."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinato.ir.dtype import DType
from ostinato.ir.op import Composite, Value
from ostinato.ir.shape import show

if TYPE_CHECKING:
    from ostinato.ir.graph import Node
    from ostinato.ir.tensor import Tensor


class _Unary(Composite):
    """One float32 operand, a result like it."""

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 1)
        self.require_dtype(inputs[0], DType.F32)
        return Value(inputs[0].shape, DType.F32)


@dataclass(frozen=True)
class Embedding(Composite):
    """ids `[rows]` int64, table `[vocab, dim]` in any encoding → `[rows, dim]`."""

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 2)
        ids, table = inputs
        self.require_dtype(ids, DType.I64)
        self.require_dtype(table, DType.F32)
        fits = len(ids.shape) == 1 and len(table.shape) == 2
        self.require(fits, "[rows] and [vocab, dim]", f"{show(ids.shape)} and {show(table.shape)}")
        return Value((ids.shape[0], table.shape[1]), DType.F32)

    def decompose(self, *inputs: Tensor) -> Tensor:
        ids, table = inputs
        return table.gather(ids)  # [rows, dim]


@dataclass(frozen=True)
class RmsNorm(Composite):
    """x / sqrt(mean(x²) + eps) · w (Zhang & Sennrich 2019, arXiv:1910.07467): x `[..., dim]`, w `[dim]`."""

    eps: float

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 2)
        x, weight = inputs
        self.require_dtype(x, DType.F32)
        self.require_dtype(weight, DType.F32)
        fits = len(x.shape) > 0 and weight.shape == x.shape[-1:] and isinstance(x.shape[-1], int)
        self.require(fits, f"a weight {show(x.shape[-1:])}", show(weight.shape))
        return Value(x.shape, DType.F32)

    def decompose(self, *inputs: Tensor) -> Tensor:
        x, weight = inputs
        dim = x.shape[-1]
        assert isinstance(dim, int)
        mean_square = (x * x).sum() / float(dim)  # [..., 1]
        return x / (mean_square + self.eps).sqrt() * weight


@dataclass(frozen=True)
class LayerNorm(Composite):
    """(x - mean) / sqrt(variance + eps) · w + b (Ba et al. 2016, arXiv:1607.06450).

    x `[..., dim]`, w and b `[dim]` → like x.
    """

    eps: float

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 3)
        x = inputs[0]
        for node in inputs:
            self.require_dtype(node, DType.F32)
        self.require(len(x.shape) > 0 and isinstance(x.shape[-1], int), "[..., dim]", show(x.shape))
        for vector in inputs[1:]:
            self.require(vector.shape == x.shape[-1:], f"a vector {show(x.shape[-1:])}", show(vector.shape))
        return Value(x.shape, DType.F32)

    def decompose(self, *inputs: Tensor) -> Tensor:
        x, weight, bias = inputs
        dim = x.shape[-1]
        assert isinstance(dim, int)
        centred = x - x.sum() / float(dim)
        variance = (centred * centred).sum() / float(dim)  # [..., 1]
        return centred / (variance + self.eps).sqrt() * weight + bias


@dataclass(frozen=True)
class GeluTanh(_Unary):
    """x/2 · (1 + tanh(sqrt(2/pi) · (x + 0.044715 x³))) (Hendrycks & Gimpel 2016, arXiv:1606.08415)."""

    def decompose(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        inner = (x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)
        return x * 0.5 * (inner.tanh() + 1.0)


@dataclass(frozen=True)
class Silu(_Unary):
    """x · sigmoid(x) (Elfwing et al. 2017, arXiv:1702.03118)."""

    def decompose(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return x / ((-x).exp() + 1.0)


@dataclass(frozen=True)
class SwiGlu(Composite):
    """silu(gate) · up (Shazeer 2020, arXiv:2002.05202)."""

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 2)
        gate, up = inputs
        self.require_dtype(gate, DType.F32)
        self.require_dtype(up, DType.F32)
        self.require(gate.shape == up.shape, f"up {show(gate.shape)}", show(up.shape))
        return Value(gate.shape, DType.F32)

    def decompose(self, *inputs: Tensor) -> Tensor:
        gate, up = inputs
        return gate.apply(Silu()) * up


@dataclass(frozen=True)
class Softmax(_Unary):
    """exp(x - max) / sum over the last axis. Lanes at -inf get exactly 0."""

    def decompose(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        e = (x - x.max()).exp()
        return e / e.sum()


@dataclass(frozen=True)
class Rope(Composite):
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864) of the first `rot` elements of each head.

    x `[rows, heads, head_dim]`, cos and sin `[rows, rot/2]` → like x. Pairs are (i, i + rot/2), the
    half-split order; files that store interleaved pairs are reordered when they are loaded.
    """

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 3)
        x, cos, sin = inputs
        for node in inputs:
            self.require_dtype(node, DType.F32)
        fits = (
            len(x.shape) == 3
            and len(cos.shape) == 2
            and cos.shape == sin.shape
            and cos.shape[0] == x.shape[0]
        )
        got = ", ".join(show(node.shape) for node in inputs)
        self.require(fits, "[rows, heads, head_dim] and twice [rows, rot/2]", got)
        half, head_dim = cos.shape[1], x.shape[2]
        fits = isinstance(half, int) and isinstance(head_dim, int) and 0 < 2 * half <= head_dim
        self.require(fits, "rot ≤ head_dim", got)
        return Value(x.shape, DType.F32)

    def decompose(self, *inputs: Tensor) -> Tensor:
        x, cos, sin = inputs
        half, head_dim = cos.shape[1], x.shape[2]
        assert isinstance(half, int)
        assert isinstance(head_dim, int)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # [rows, 1, rot/2]
        a = x.slice(-1, 0, half)  # [rows, heads, rot/2]
        b = x.slice(-1, half, 2 * half)  # [rows, heads, rot/2]
        parts = [a * cos - b * sin, b * cos + a * sin]
        if 2 * half < head_dim:
            parts.append(x.slice(-1, 2 * half, head_dim))
        return parts[0].concat(parts[1:], axis=-1)  # [rows, heads, head_dim]
