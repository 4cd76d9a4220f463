"""The lazy tensor graph: types, symbols, ops, and the `Tensor` handle that model code is written with."""

from __future__ import annotations

from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding
from ostinato.ir.functional import embedding, gelu_tanh, layer_norm, linear, rms_norm, rope, swiglu
from ostinato.ir.graph import Graph, Node
from ostinato.ir.location import HOST, Location
from ostinato.ir.op import Composite, Op, Primitive, Value
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.recipe import PackRecipe
from ostinato.ir.shape import DataDim, Dim, Length, NodeId, Operand, Shape
from ostinato.ir.symbols import SymEnv, SymId
from ostinato.ir.tensor import Tensor

__all__ = [
    "HOST",
    "Composite",
    "Const",
    "ConstRole",
    "DType",
    "DataDim",
    "Dim",
    "Encoding",
    "Graph",
    "Length",
    "Location",
    "Node",
    "NodeId",
    "Op",
    "Operand",
    "PackRecipe",
    "Primitive",
    "Shape",
    "SymEnv",
    "SymId",
    "Tensor",
    "Value",
    "embedding",
    "gelu_tanh",
    "layer_norm",
    "linear",
    "rms_norm",
    "rope",
    "swiglu",
]
