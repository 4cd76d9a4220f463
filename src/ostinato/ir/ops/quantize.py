"""Roundings that a product asks of its operand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinato.ir.dtype import DType
from ostinato.ir.op import Primitive, Value
from ostinato.ir.shape import show

if TYPE_CHECKING:
    from ostinato.ir.graph import Node


FURTHER = 1.5
"""From how many times the mean of its row's blocks on, as far as rounding adds to a product's error, a block
is rounded further. In a language model that is about one block in eight, and most of the error."""

LEAST = 2.0**-100
"""The least squared scale of a block that is rounded further."""


class Rounding(Primitive):
    """Base: x `[..., K]` in float32, to float32 of fewer digits."""

    def fits(self, columns: int) -> bool:
        """Whether rows of so many elements can be rounded."""
        return columns > 0

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 1)
        (x,) = inputs
        self.require_dtype(x, DType.F32)
        last = x.shape[-1] if x.shape else 0
        self.require(isinstance(last, int) and self.fits(last), self._wanted, show(x.shape))
        return Value(x.shape, DType.F32)

    @property
    def _wanted(self) -> str:
        return "[..., K]"


@dataclass(frozen=True)
class RoundBF16(Rounding):
    """Each element to the nearest bfloat16, half to even; NaN stays NaN.

    For instructions that multiply pairs of bfloat16. These take elements below the least normal number,
    2^-126, for zeros, so a product may be wrong by that much.
    """


@dataclass(frozen=True)
class QuantizeRows(Rounding):
    """x `[..., K]` as a product of int8 blocks sees it; K is a multiple of `block`.

    For each `block` consecutive elements of the last axis, all in float32 and rounded to nearest even:
    amax = max |x|; d = amax · float32(1/127); inv = float32(127) / amax, or 0 where that isn't finite (amax
    is 0, below about 3.7e-37, or NaN); q = x · inv rounded to an integer, half to even (so -0 is 0); the
    result is d · q. A block that holds NaN or infinity becomes NaN.

    Few elements of a row are far larger than the others, and rounding their blocks makes most of a product's
    error. What is left of those blocks gets a second int8. Of a row's n blocks that is each one whose d · d
    is at least total · float32(FURTHER / n) and at least LEAST, where total is the sum of all d · d, if that
    is finite: block b adds to sum b mod 4, in order, and total is (sum 0 + sum 1) + (sum 2 + sum 3). There
    r = x - d · q; q2 = r · (float32(254) / d) rounded as q is; the result is d · q + d · float32(1/254) · q2,
    multiplied from the left.

    These are the dequantised values, so every device can run the op; one with int8 products keeps q and d.
    """

    block: int

    def fits(self, columns: int) -> bool:
        return self.block > 0 and columns > 0 and columns % self.block == 0

    @property
    def _wanted(self) -> str:
        return f"[..., a multiple of {self.block}]"
