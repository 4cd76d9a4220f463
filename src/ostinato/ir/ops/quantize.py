"""Rounding that a product asks of its operand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinato.ir.dtype import DType
from ostinato.ir.op import Primitive, Value
from ostinato.ir.shape import show

if TYPE_CHECKING:
    from ostinato.ir.graph import Node


@dataclass(frozen=True)
class QuantizeRows(Primitive):
    """x `[..., K]` as a product of int8 blocks sees it; K is a multiple of `block`.

    For each `block` consecutive elements of the last axis, all in float32 and rounded to nearest even:
    amax = max |x|; d = amax · float32(1/127); inv = float32(127) / amax, or 0 where that isn't finite (amax
    is 0, below about 3.7e-37, or NaN); q = x · inv rounded to an integer, half to even (so -0 is 0); the
    result is d · q. That is the dequantised value, so every device can run the op; one with int8 products
    keeps q and d. A block that holds NaN or infinity becomes NaN.
    """

    block: int

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 1)
        (x,) = inputs
        self.require_dtype(x, DType.F32)
        last = x.shape[-1] if x.shape else 0
        fits = self.block > 0 and isinstance(last, int) and last > 0 and last % self.block == 0
        self.require(fits, f"[..., a multiple of {self.block}]", show(x.shape))
        return Value(x.shape, DType.F32)
