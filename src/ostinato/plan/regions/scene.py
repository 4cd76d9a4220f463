"""The draft as patterns see it, and the regions that they make of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ostinato.ir.graph import Node
from ostinato.ir.location import Location
from ostinato.ir.op import Op
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.ops.region import Region
from ostinato.ir.shape import NodeId
from ostinato.plan.draft import Draft


@dataclass(frozen=True)
class Match:
    """A region to be: it takes the place of its last node. `held` are the nodes that it alone runs, the last
    one included; what it only repeats for itself isn't among them."""

    result: NodeId
    region: Region
    inputs: tuple[NodeId, ...]
    held: frozenset[NodeId]


Matcher = Callable[["Scene", Node], Match | None]


@dataclass(frozen=True)
class Scene:
    """What a pattern asks about. `pinned` nodes stand in an order that a region would hide; `held` grows with
    every region."""

    nodes: Mapping[NodeId, Node]
    placement: Mapping[NodeId, Location]
    readers: Mapping[NodeId, Sequence[NodeId]]
    pinned: frozenset[NodeId]
    held: set[NodeId] = field(default_factory=set)

    @classmethod
    def of(cls, draft: Draft) -> Scene:
        pinned = frozenset(node for pair in draft.order for node in pair)
        return cls(dict(draft.nodes), draft.placement, draft.readers(), pinned)

    def may_hold(self, node: NodeId, location: Location) -> bool:
        """Whether a region at `location` may run this node."""
        return self.placement[node] == location and node not in self.held and not self.is_pinned(node)

    def is_pinned(self, node: NodeId) -> bool:
        """Whether something must run before or after this very node although no value tells."""
        return node in self.pinned

    def only_reader(self, node: NodeId) -> Node | None:
        """Who alone reads a value, and once; None where others must see it too. A result on its way home is
        read by its Copy."""
        readers = self.readers.get(node, ())
        return self.nodes[readers[0]] if len(readers) == 1 else None

    def is_weight(self, node: NodeId) -> bool:
        op = self.nodes[node].op
        return isinstance(op, Const) and op.role is ConstRole.WEIGHT


class Body:
    """A region's operands and instructions as they are found. Instructions are numbered -1, -2, … until the
    number of operands is known."""

    def __init__(self) -> None:
        self.inputs: list[NodeId] = []
        self._steps: list[tuple[Op, tuple[int, ...]]] = []

    def operand(self, node: NodeId) -> int:
        """A further operand."""
        self.inputs.append(node)
        return len(self.inputs) - 1

    def step(self, op: Op, *reads: int) -> int:
        """A further instruction over operands and earlier instructions."""
        self._steps.append((op, reads))
        return -len(self._steps)

    def region(self, pattern: str) -> Region:
        arity = len(self.inputs)
        body = tuple((op, tuple(r if r >= 0 else arity - 1 - r for r in reads)) for op, reads in self._steps)
        return Region(pattern, arity, body)
