"""Ops that move elements and compute nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinato.ir.dtype import DType
from ostinato.ir.location import Location
from ostinato.ir.op import Primitive, Value
from ostinato.ir.shape import Dim, Shape, factors, show

if TYPE_CHECKING:
    from ostinato.ir.graph import Node


class _Moved(Primitive):
    """What is only seen another way, and so may share its operand's memory."""

    may_alias = True


@dataclass(frozen=True)
class Reshape(_Moved):
    """The same elements in the same order under another shape."""

    shape: Shape

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 1)
        (x,) = inputs
        natural = all(dim >= 0 for dim in self.shape if isinstance(dim, int))
        self.require(natural, "extents of at least 0", show(self.shape))
        fits = factors(x.shape) == factors(self.shape)
        self.require(fits, f"as many elements as {show(self.shape)}", show(x.shape))
        return Value(self.shape, x.dtype)


@dataclass(frozen=True)
class Transpose(_Moved):
    """Axis i of the result is axis `order[i]` of the input."""

    order: tuple[int, ...]

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 1)
        (x,) = inputs
        fits = sorted(self.order) == list(range(len(x.shape)))
        self.require(fits, f"{len(self.order)} axes for the order {self.order}", show(x.shape))
        return Value(tuple(x.shape[axis] for axis in self.order), x.dtype)


@dataclass(frozen=True)
class Unsqueeze(_Moved):
    """Insert an axis of extent 1 before `axis`."""

    axis: int

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 1)
        (x,) = inputs
        self.require(0 <= self.axis <= len(x.shape), f"at least {self.axis} axes", show(x.shape))
        return Value((*x.shape[: self.axis], 1, *x.shape[self.axis :]), x.dtype)


@dataclass(frozen=True)
class Squeeze(_Moved):
    """Drop `axis`, whose extent is 1."""

    axis: int

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 1)
        (x,) = inputs
        fits = 0 <= self.axis < len(x.shape) and x.shape[self.axis] == 1
        self.require(fits, f"extent 1 on axis {self.axis}", show(x.shape))
        return Value(x.shape[: self.axis] + x.shape[self.axis + 1 :], x.dtype)


@dataclass(frozen=True)
class Slice(_Moved):
    """`start` … `stop` - 1 of `axis`, both plain numbers."""

    axis: int
    start: int
    stop: int

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 1)
        (x,) = inputs
        self.require(-len(x.shape) <= self.axis < len(x.shape), f"an axis {self.axis}", show(x.shape))
        axis = self.axis % len(x.shape)
        extent = x.shape[axis]
        fits = isinstance(extent, int) and 0 <= self.start < self.stop <= extent
        self.require(fits, f"an axis {axis} that holds {self.start}:{self.stop}", show(x.shape))
        return Value((*x.shape[:axis], self.stop - self.start, *x.shape[axis + 1 :]), x.dtype)


@dataclass(frozen=True)
class Concat(Primitive):
    """Tensors one after another along `axis`."""

    axis: int

    def infer(self, *inputs: Node) -> Value:
        self.require(len(inputs) > 0, "at least one operand", "none")
        first = inputs[0]
        self.require(
            -len(first.shape) <= self.axis < len(first.shape), f"an axis {self.axis}", show(first.shape)
        )
        axis = self.axis % len(first.shape)
        total = 0
        for x in inputs:
            self.require_dtype(x, first.dtype)
            fits = x.shape[:axis] + x.shape[axis + 1 :] == first.shape[:axis] + first.shape[axis + 1 :]
            self.require(fits, f"{show(first.shape)} but for axis {axis}", show(x.shape))
            extent = x.shape[axis]
            self.require(isinstance(extent, int), f"a number as the extent of axis {axis}", show(x.shape))
            assert isinstance(extent, int)
            total += extent
        return Value((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)


@dataclass(frozen=True)
class Gather(Primitive):
    """`table[n, ...]`, `rows[m]` int64 → `[m, ...]`; an index outside 0 … n-1 is IndexOutOfRange."""

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 2)
        table, rows = inputs
        self.require_dtype(rows, DType.I64)
        self.require(len(rows.shape) == 1, "[m] row indices", show(rows.shape))
        self.require(len(table.shape) > 0, "a table with rows", show(table.shape))
        shape: tuple[Dim, ...] = (rows.shape[0], *table.shape[1:])
        return Value(shape, table.dtype)


@dataclass(frozen=True)
class Clone(Primitive):
    """The value in memory of its own, on the same device: what a pass puts between a slab and a reader
    that must still see it as it was when a write has gone over it."""

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 1)
        return Value(inputs[0].shape, inputs[0].dtype)


@dataclass(frozen=True)
class Copy(Primitive):
    """The value on another device, or in the host's memory."""

    target: Location

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 1)
        return Value(inputs[0].shape, inputs[0].dtype)
