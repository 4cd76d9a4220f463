"""Matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinato.ir.dtype import DType
from ostinato.ir.op import Composite, Primitive, Value
from ostinato.ir.shape import broadcast, show

if TYPE_CHECKING:
    from ostinato.ir.graph import Node
    from ostinato.ir.tensor import Tensor


@dataclass(frozen=True)
class MatMul(Primitive):
    """`[..., m, k] @ [..., k, n]` → `[..., m, n]`, leading axes broadcast."""

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 2)
        left, right = inputs
        self.require_dtype(left, DType.F32)
        self.require_dtype(right, DType.F32)
        got = f"{show(left.shape)} @ {show(right.shape)}"
        fits = len(left.shape) >= 2 and len(right.shape) >= 2 and left.shape[-1] == right.shape[-2]
        self.require(fits, "[..., m, k] @ [..., k, n]", got)
        batch = broadcast(left.shape[:-2], right.shape[:-2])
        self.require(batch is not None, "leading axes that broadcast", got)
        assert batch is not None
        return Value((*batch, left.shape[-2], right.shape[-1]), DType.F32)


@dataclass(frozen=True)
class SelectedMatMul(Primitive):
    """`weights[..., m, k] @ values[..., k, n]` over the lanes that the bool `lanes[m, k]` selects.

    `values` of a lane that isn't selected are not read into its row, so NaN and infinities stay with the
    rows that select them; a selected one meets its weight as IEEE 754 has it. Weights are at least 0 (or
    NaN), and 0 where not selected, as a softmax over -inf leaves them.
    """

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 3)
        lanes, weights, values = inputs
        self.require_dtype(lanes, DType.BOOL)
        product = MatMul().infer(weights, values)
        fits = len(lanes.shape) == 2 and lanes.shape == weights.shape[-2:]
        self.require(fits, f"lanes {show(weights.shape[-2:])}", show(lanes.shape))
        return product


@dataclass(frozen=True)
class Linear(Composite):
    """x Wᵀ + b: x `[rows, in]`, W `[out, in]` in any encoding, b `[out]` if given → `[rows, out]`."""

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 2, 3)
        x, weight, *bias = inputs
        for node in inputs:
            self.require_dtype(node, DType.F32)
        fits = len(x.shape) == 2 and len(weight.shape) == 2 and x.shape[1] == weight.shape[1]
        self.require(fits, "[rows, in] and [out, in]", f"{show(x.shape)} and {show(weight.shape)}")
        for b in bias:
            self.require(b.shape == (weight.shape[0],), show(weight.shape[:1]), show(b.shape))
        return Value((x.shape[0], weight.shape[0]), DType.F32)

    def decompose(self, *inputs: Tensor) -> Tensor:
        x, weight, *bias = inputs
        y = x @ weight.transpose(1, 0)  # [rows, out]
        return y + bias[0] if bias else y
