"""Composite ops as functions: what a model's code reads like."""

from __future__ import annotations

from ostinato.ir.ops.nn import Embedding, GeluTanh, LayerNorm, RmsNorm, Rope, SwiGlu
from ostinato.ir.ops.product import Linear
from ostinato.ir.tensor import Tensor


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """ids `[rows]` int64, table `[vocab, dim]` → `[rows, dim]`."""
    return ids.apply(Embedding(), table)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x `[rows, in]`, weight `[out, in]`, bias `[out]` → `[rows, out]`."""
    return x.apply(Linear(), weight) if bias is None else x.apply(Linear(), weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x `[..., dim]`, weight `[dim]` → like x."""
    return x.apply(RmsNorm(eps), weight)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x `[..., dim]`, weight and bias `[dim]` → like x."""
    return x.apply(LayerNorm(eps), weight, bias)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x `[rows, heads, head_dim]`, cos and sin `[rows, rot/2]` → like x, pairs in half-split order."""
    return x.apply(Rope(), cos, sin)


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its tanh approximation."""
    return x.apply(GeluTanh())


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up."""
    return gate.apply(SwiGlu(), up)
