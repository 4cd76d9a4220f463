"""The closed set of ops, a file for each kind."""

from __future__ import annotations

from ostinato.ir.op import Composite, Primitive
from ostinato.ir.ops.attention import Attention
from ostinato.ir.ops.const import Const, Iota, Scalar, SymbolValue
from ostinato.ir.ops.elementwise import (
    Add,
    And,
    Cast,
    Div,
    Exp,
    Less,
    LessEqual,
    Mul,
    Neg,
    Sqrt,
    Sub,
    Tanh,
    Where,
)
from ostinato.ir.ops.movement import (
    Clone,
    Concat,
    Copy,
    Gather,
    Reshape,
    Slice,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from ostinato.ir.ops.nn import Embedding, GeluTanh, LayerNorm, RmsNorm, Rope, Silu, Softmax, SwiGlu
from ostinato.ir.ops.product import Linear, MatMul, SelectedMatMul
from ostinato.ir.ops.quantize import QuantizeRows, RoundBF16
from ostinato.ir.ops.reduce import ArgMax, Max, Sum
from ostinato.ir.ops.region import Region
from ostinato.ir.ops.slab import ReadPrefix, WriteSlice, WriteSliceDevice

LEAVES: tuple[type[Primitive], ...] = (Const, Scalar, SymbolValue, Iota)
PRIMITIVES: tuple[type[Primitive], ...] = (
    *LEAVES, Add, Sub, Mul, Div, Less, LessEqual, And, Where, Neg, Exp, Tanh, Sqrt, Cast, Sum, Max, ArgMax,
    Reshape, Transpose, Unsqueeze, Squeeze, Slice, Concat, Gather, Clone, Copy, MatMul,
    SelectedMatMul, QuantizeRows, RoundBF16, WriteSlice, WriteSliceDevice, ReadPrefix,
)  # fmt: skip
COMPOSITES: tuple[type[Composite], ...] = (
    Embedding, RmsNorm, LayerNorm, Linear, Rope, Silu, SwiGlu, GeluTanh, Softmax, Attention, Region,
)  # fmt: skip

__all__ = ["COMPOSITES", "PRIMITIVES"]
