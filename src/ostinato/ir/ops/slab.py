"""Ops on KV slabs: in-place writes and reads of what has been written.

A slab is `[1, kv_heads, capacity, head_dim]`. A write's result *is* its slab: readers that need the
written rows take the result. Positions and extents are `Length`s, never literals of a built graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinato.ir.dtype import DType
from ostinato.ir.op import Op, Primitive, Value
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.shape import DataDim, Extent, Length, Operand, show

if TYPE_CHECKING:
    from ostinato.ir.graph import Node


def require_length(op: Op, length: Length, inputs: tuple[Node, ...]) -> None:
    """An `Operand` length must be a rank-0 int64 input of `op`."""
    if isinstance(length, Operand):
        op.require(
            length.index < len(inputs), f"a length as operand {length.index}", f"{len(inputs)} operands"
        )
        node = inputs[length.index]
        op.require_dtype(node, DType.I64)
        op.require(node.shape == (), "[] for a length", show(node.shape))


class SlabWrite(Primitive):
    """What both writes share: operands slab and rows `[rows, kv_heads, head_dim]`, result the slab."""

    @property
    def writes(self) -> tuple[int, ...]:
        return (0,)

    def _slab_after_write(self, inputs: tuple[Node, ...]) -> Value:
        slab, rows = inputs[:2]
        held = isinstance(slab.op, SlabWrite) or (
            isinstance(slab.op, Const) and slab.op.role is ConstRole.SLAB
        )
        self.require(held, "a slab or what a write returned", slab.op.name)
        self.require(len(slab.shape) == 4 and slab.shape[0] == 1, "a slab [1, kv_heads, capacity, head_dim]",
                     show(slab.shape))  # fmt: skip
        self.require_dtype(slab, DType.F32, DType.F16)
        self.require_dtype(rows, DType.F32)
        fits = len(rows.shape) == 3 and rows.shape[1:] == (slab.shape[1], slab.shape[3])
        self.require(fits, f"rows [rows, {slab.shape[1]}, {slab.shape[3]}]", show(rows.shape))
        return Value(slab.shape, slab.dtype)


@dataclass(frozen=True)
class WriteSlice(SlabWrite):
    """Rows 0 … count-1 go to positions start … start+count-1, rounded to the slab's type; the position
    is a number or rides the SymEnv (the *symbolic* write path)."""

    start: Extent
    count: Extent

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 2)
        return self._slab_after_write(inputs)


@dataclass(frozen=True)
class WriteSliceDevice(SlabWrite):
    """The same write with start and count as rank-0 int64 operands (the *device_offset* path): nothing
    about the position is baked into the plan, so a capture of it stays valid."""

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 4)
        require_length(self, Operand(2), inputs)
        require_length(self, Operand(3), inputs)
        return self._slab_after_write(inputs)


@dataclass(frozen=True)
class ReadPrefix(Primitive):
    """The first `length` entries of `axis`: `[..., capacity, d]` → `[..., length, d]`."""

    may_alias = True

    length: Length
    axis: int = -2

    def infer(self, *inputs: Node) -> Value:
        self.require_inputs(inputs, 2 if isinstance(self.length, Operand) else 1)
        require_length(self, self.length, inputs)
        slab = inputs[0]
        self.require(len(slab.shape) >= -self.axis > 0, f"an axis {self.axis}", show(slab.shape))
        axis = len(slab.shape) + self.axis
        extent = DataDim(inputs[self.length.index].id) if isinstance(self.length, Operand) else self.length
        return Value((*slab.shape[:axis], extent, *slab.shape[axis + 1 :]), slab.dtype)
