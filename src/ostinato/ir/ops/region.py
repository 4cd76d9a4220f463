"""A part of a graph under one name: what a device may run as one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinato.ir.op import Composite, Op, Value
from ostinato.ir.shape import NodeId

if TYPE_CHECKING:
    from ostinato.ir.graph import Node
    from ostinato.ir.tensor import Tensor

Instruction = tuple[Op, tuple[int, ...]]
"""An op and what it reads: operands 0 … arity - 1, then the results of earlier instructions."""


@dataclass(frozen=True)
class Region(Composite):
    """The subgraph it replaces, kept: instruction j reads operands 0 … arity - 1 and earlier instructions
    (instruction i as arity + i); the last one's result is the region's. `pattern` names its form; a device
    that has no kernel for it runs the body.
    """

    pattern: str
    arity: int
    body: tuple[Instruction, ...]

    @property
    def name(self) -> str:
        return f"{self.pattern} region"

    @property
    def writes(self) -> tuple[int, ...]:
        """Operands that the body writes in place."""
        return tuple(sorted({reads[at] for op, reads in self.body for at in op.writes}))

    def infer(self, *inputs: Node) -> Value:
        from ostinato.ir.graph import Node

        self.require_inputs(inputs, self.arity)
        values = list(inputs)
        for j, (op, reads) in enumerate(self.body):
            value = op.infer(*(values[i] for i in reads))
            # an id that no graph has: what is inside has no place in one
            values.append(Node(NodeId(-1 - j), op, (), value.shape, value.dtype))
        return Value(values[-1].shape, values[-1].dtype)

    def decompose(self, *inputs: Tensor) -> Tensor:
        values = list(inputs)
        for op, reads in self.body:
            values.append(values[0].graph.apply(op, *(values[i] for i in reads)))
        return values[-1]
