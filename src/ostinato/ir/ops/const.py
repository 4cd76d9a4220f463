"""Leaves of a graph: placeholders, numbers, and the values of symbols."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding
from ostinato.ir.op import Primitive, Value
from ostinato.ir.recipe import PackRecipe
from ostinato.ir.shape import DataDim, Length, Operand, Shape, show
from ostinato.ir.symbols import SymId

if TYPE_CHECKING:
    from ostinato.ir.graph import Node


class ConstRole(Enum):
    """Who binds a Const."""

    WEIGHT = "weight"
    SLAB = "slab"
    DATA = "data"


@dataclass(frozen=True)
class Const(Primitive):
    """A placeholder that declares shape, dtype *and* encoding; binding anything else is a typed error.

    `recipe` is set by the layout pass on weights: the WeightStore binds what the recipe packs.
    """

    label: str
    role: ConstRole
    shape: Shape
    dtype: DType
    encoding: Encoding
    recipe: PackRecipe | None = None

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 0)
        natural = all(dim >= 0 for dim in self.shape if isinstance(dim, int))
        self.require(natural, "extents of at least 0", show(self.shape))
        return Value(self.shape, self.dtype)


@dataclass(frozen=True)
class Scalar(Primitive):
    """A number written in the model's code, rank 0."""

    value: float
    dtype: DType

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 0)
        return Value((), self.dtype)


@dataclass(frozen=True)
class SymbolValue(Primitive):
    """The value of a symbol as a rank-0 int64."""

    symbol: SymId

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 0)
        return Value((), DType.I64)


@dataclass(frozen=True)
class Iota(Primitive):
    """0, 1, … extent - 1 as int64: `[extent]`. An `Operand` extent rides in the only input."""

    extent: Length

    def infer(self, *inputs: Node) -> Value:
        if isinstance(self.extent, Operand):
            self.require_inputs(inputs, 1)
            self.require_dtype(inputs[0], DType.I64)
            self.require(inputs[0].shape == (), "[]", inputs[0].shape)
            return Value((DataDim(inputs[0].id),), DType.I64)
        self.require_inputs(inputs, 0)
        return Value((self.extent,), DType.I64)
