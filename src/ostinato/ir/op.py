"""What an op is: a frozen value with a shape and dtype rule, and for composites a decomposition."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ostinato.errors.graph import DTypeMismatch, ShapeMismatch
from ostinato.ir.dtype import DType
from ostinato.ir.shape import Shape

if TYPE_CHECKING:
    from ostinato.ir.graph import Node
    from ostinato.ir.tensor import Tensor


class Value(NamedTuple):
    """What a node yields: shape and element type."""

    shape: Shape
    dtype: DType


class Op:
    """Base of the closed set of ops. Subclasses are frozen dataclasses; their fields are their attributes.

    No ABC: planning asks thousands of times what an op is, and an ABC answers five times slower.
    """

    may_alias: ClassVar[bool] = False
    """Whether a device may hand back its first operand's memory, seen another way, as the result."""

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def writes(self) -> tuple[int, ...]:
        """The operands, slabs all, that it writes in place."""
        return ()

    def infer(self, *inputs: Node) -> Value:
        """Shape and dtype of the result; raises ShapeMismatch or DTypeMismatch. Every op has its own."""
        raise NotImplementedError

    def require(self, holds: bool, expected: object, got: object) -> None:
        """Raise ShapeMismatch unless `holds`."""
        if not holds:
            raise ShapeMismatch(self.name, str(expected), str(got))

    def require_dtype(self, node: Node, *allowed: DType) -> None:
        """Raise DTypeMismatch unless the operand's dtype is one of `allowed`."""
        if node.dtype not in allowed:
            raise DTypeMismatch(self.name, " or ".join(map(str, allowed)), str(node.dtype))

    def require_inputs(self, inputs: tuple[Node, ...], *counts: int) -> None:
        """Raise ShapeMismatch unless the number of operands is one of `counts`."""
        if len(inputs) not in counts:
            raise ShapeMismatch(self.name, f"{' or '.join(map(str, counts))} operands", f"{len(inputs)}")


class Primitive(Op):
    """An op that every device has a kernel for."""


class Composite(Op):
    """An op with a name of its own in the field, defined by `decompose` and fused where a device can.

    It computes: its result is never a view of an operand."""

    def decompose(self, *inputs: Tensor) -> Tensor:
        """The same result written with simpler ops; this is the op's definition."""
        raise NotImplementedError
