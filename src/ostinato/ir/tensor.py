"""The handle that model code is written with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from ostinato.errors.graph import NoValueYet
from ostinato.ir.dtype import DType
from ostinato.ir.graph import Graph, Node
from ostinato.ir.op import Op
from ostinato.ir.ops import elementwise as ew
from ostinato.ir.ops import movement as mv
from ostinato.ir.ops import reduce as rd
from ostinato.ir.ops.const import Scalar
from ostinato.ir.ops.product import MatMul
from ostinato.ir.shape import Dim, NodeId, Shape, show


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A node of a graph with operators; holds no data. Numbers in expressions become Scalar nodes."""

    graph: Graph
    id: NodeId

    @property
    def node(self) -> Node:
        return self.graph[self.id]

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    def __repr__(self) -> str:
        return f"Tensor(%{self.id} {self.node.op.name} {show(self.shape)} {self.dtype})"

    def apply(self, op: Op, *others: Tensor) -> Tensor:
        """`op` with this tensor as its first operand."""
        return self.graph.apply(op, self, *others)

    def _lift(self, value: Tensor | float) -> Tensor:
        if isinstance(value, Tensor):
            return value
        return self.graph.apply(Scalar(value, self.dtype))

    # arithmetic, with numpy's broadcasting
    def __add__(self, other: Tensor | float) -> Tensor:
        return self.apply(ew.Add(), self._lift(other))

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self.apply(ew.Sub(), self._lift(other))

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self.apply(ew.Mul(), self._lift(other))

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self.apply(ew.Div(), self._lift(other))

    def __radd__(self, other: float) -> Tensor:
        return self._lift(other) + self

    def __rsub__(self, other: float) -> Tensor:
        return self._lift(other) - self

    def __rmul__(self, other: float) -> Tensor:
        return self._lift(other) * self

    def __rtruediv__(self, other: float) -> Tensor:
        return self._lift(other) / self

    def __neg__(self) -> Tensor:
        return self.apply(ew.Neg())

    def __lt__(self, other: Tensor | float) -> Tensor:
        return self.apply(ew.Less(), self._lift(other))

    def __le__(self, other: Tensor | float) -> Tensor:
        return self.apply(ew.LessEqual(), self._lift(other))

    def __and__(self, other: Tensor) -> Tensor:
        return self.apply(ew.And(), other)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.apply(MatMul(), other)

    # what a list of numbers could do and a node can't
    def __bool__(self) -> NoReturn:
        raise NoValueYet("true or false")

    def __iter__(self) -> NoReturn:
        raise NoValueYet("iterated over or unpacked")

    def where(self, yes: Tensor | float, no: Tensor | float, dtype: DType = DType.F32) -> Tensor:
        """Elementwise selection by this bool tensor: the lane not chosen is not read, not multiplied by 0."""
        yes = yes if isinstance(yes, Tensor) else self.graph.apply(Scalar(yes, dtype))
        no = no if isinstance(no, Tensor) else self.graph.apply(Scalar(no, dtype))
        return self.apply(ew.Where(), yes, no)

    def exp(self) -> Tensor:
        return self.apply(ew.Exp())

    def tanh(self) -> Tensor:
        return self.apply(ew.Tanh())

    def sqrt(self) -> Tensor:
        return self.apply(ew.Sqrt())

    def cast(self, dtype: DType) -> Tensor:
        return self if self.dtype is dtype else self.apply(ew.Cast(dtype))

    # reductions; the reduced axis stays with extent 1
    def sum(self, axis: int = -1) -> Tensor:
        return self.apply(rd.Sum(axis))

    def max(self, axis: int = -1) -> Tensor:
        return self.apply(rd.Max(axis))

    def argmax(self) -> Tensor:
        """Index of the largest element of the last axis, the lowest index among equals."""
        return self.apply(rd.ArgMax())

    # movement
    def reshape(self, *shape: Dim) -> Tensor:
        return self.apply(mv.Reshape(shape))

    def transpose(self, *order: int) -> Tensor:
        return self.apply(mv.Transpose(order))

    def unsqueeze(self, axis: int) -> Tensor:
        """Insert an axis of extent 1."""
        return self.apply(mv.Unsqueeze(axis))

    def squeeze(self, axis: int) -> Tensor:
        """Drop an axis of extent 1."""
        return self.apply(mv.Squeeze(axis))

    def slice(self, axis: int, start: int, stop: int) -> Tensor:
        return self.apply(mv.Slice(axis, start, stop))

    def concat(self, others: Sequence[Tensor], axis: int) -> Tensor:
        return self.apply(mv.Concat(axis), *others)

    def __getitem__(self, index: int) -> Tensor:
        """One entry of the first axis."""
        return self.slice(0, index, index + 1).squeeze(0)

    def gather(self, rows: Tensor) -> Tensor:
        """Rows of the first axis, chosen by int64 indices."""
        return self.apply(mv.Gather(), rows)
