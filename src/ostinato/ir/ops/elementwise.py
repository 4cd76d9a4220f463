"""Elementwise primitives, with numpy's broadcasting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinato.ir.dtype import DType
from ostinato.ir.op import Primitive, Value
from ostinato.ir.shape import Shape, broadcast, show

if TYPE_CHECKING:
    from ostinato.ir.graph import Node


class _Binary(Primitive):
    def _broadcast(self, *inputs: Node) -> Shape:
        self.require_inputs(inputs, 2)
        left, right = inputs
        self.require_dtype(right, left.dtype)
        shape = broadcast(left.shape, right.shape)
        self.require(
            shape is not None, "shapes that broadcast", f"{show(left.shape)} and {show(right.shape)}"
        )
        assert shape is not None
        return shape

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 2)
        self.require_dtype(inputs[0], DType.F32, DType.I64)
        return Value(self._broadcast(*inputs), inputs[0].dtype)


class _Comparison(_Binary):
    def infer(self, *inputs: Node) -> Value:
        return Value(super().infer(*inputs).shape, DType.BOOL)


class _Unary(Primitive):
    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 1)
        self.require_dtype(inputs[0], DType.F32)
        return Value(inputs[0].shape, DType.F32)


@dataclass(frozen=True)
class Add(_Binary):
    """a + b"""


@dataclass(frozen=True)
class Sub(_Binary):
    """a - b"""


@dataclass(frozen=True)
class Mul(_Binary):
    """a · b"""


@dataclass(frozen=True)
class Div(_Binary):
    """a / b, floats only"""

    def infer(self, *inputs: Node) -> Value:
        value = super().infer(*inputs)
        self.require_dtype(inputs[0], DType.F32)
        return value


@dataclass(frozen=True)
class Less(_Comparison):
    """a < b"""


@dataclass(frozen=True)
class LessEqual(_Comparison):
    """a ≤ b"""


@dataclass(frozen=True)
class And(_Binary):
    """a and b, both bool"""

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 2)
        self.require_dtype(inputs[0], DType.BOOL)
        return Value(self._broadcast(*inputs), DType.BOOL)


@dataclass(frozen=True)
class Where(Primitive):
    """`yes` where `condition`, else `no`: a selection, so NaN in the lane not chosen does not spread."""

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 3)
        condition, yes, no = inputs
        self.require_dtype(condition, DType.BOOL)
        self.require_dtype(no, yes.dtype)
        inner = broadcast(yes.shape, no.shape)
        shape = None if inner is None else broadcast(condition.shape, inner)
        got = ", ".join(show(node.shape) for node in inputs)
        self.require(shape is not None, "shapes that broadcast", got)
        assert shape is not None
        return Value(shape, yes.dtype)


@dataclass(frozen=True)
class Neg(_Unary):
    """-x"""


@dataclass(frozen=True)
class Exp(_Unary):
    """e to the x"""


@dataclass(frozen=True)
class Tanh(_Unary):
    """The hyperbolic tangent of x"""


@dataclass(frozen=True)
class Sqrt(_Unary):
    """The square root of x"""


@dataclass(frozen=True)
class Cast(Primitive):
    """The value in another type, floats rounded to nearest even."""

    dtype: DType

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 1)
        return Value(inputs[0].shape, self.dtype)
