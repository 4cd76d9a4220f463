"""Reductions over one axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinato.ir.dtype import DType
from ostinato.ir.op import Primitive, Value
from ostinato.ir.shape import show

if TYPE_CHECKING:
    from ostinato.ir.graph import Node


@dataclass(frozen=True)
class _Reduce(Primitive):
    axis: int

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 1)
        (x,) = inputs
        self.require_dtype(x, DType.F32)
        self.require(-len(x.shape) <= self.axis < len(x.shape), f"an axis {self.axis}", show(x.shape))
        axis = self.axis % len(x.shape)
        return Value((*x.shape[:axis], 1, *x.shape[axis + 1 :]), DType.F32)


@dataclass(frozen=True)
class Sum(_Reduce):
    """The sum along `axis`, which stays with extent 1."""


@dataclass(frozen=True)
class Max(_Reduce):
    """The largest along `axis`, which stays with extent 1."""


@dataclass(frozen=True)
class ArgMax(Primitive):
    """Index of the largest of the last axis, `[..., n]` → `[...]` int64; the lowest index among equals. NaN
    is larger than any number, and the first NaN is the one that counts."""

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 1)
        self.require_dtype(inputs[0], DType.F32)
        self.require(len(inputs[0].shape) > 0, "at least one axis", show(inputs[0].shape))
        return Value(inputs[0].shape[:-1], DType.I64)
