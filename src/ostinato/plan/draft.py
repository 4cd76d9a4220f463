"""The working copy of a graph that passes change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ostinato.device.topology import TopologySnapshot
from ostinato.ir.encoding import Encoding
from ostinato.ir.graph import Graph, Node
from ostinato.ir.location import Location
from ostinato.ir.op import Op
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.ops.slab import SlabWrite
from ostinato.ir.shape import NodeId
from ostinato.ir.symbols import SymId


@dataclass
class Draft:
    """A graph being optimised: the source graph stays as it was.

    Node ids are those of the source graph, so roots and Consts keep their identity; new nodes get ids
    after its last. `nodes` holds what is live: what the roots or an in-place write need. `order` are pairs
    that must run one before the other although no value passes between them. `sources` are the weights'
    encodings before the layout pass, and the slabs' KV types.
    """

    graph_id: int
    nodes: dict[NodeId, Node]
    roots: tuple[NodeId, ...]
    topology: TopologySnapshot
    bounds: Mapping[SymId, int]
    dead_data: tuple[NodeId, ...]
    placement: dict[NodeId, Location] = field(default_factory=dict)
    order: list[tuple[NodeId, NodeId]] = field(default_factory=list)
    sources: dict[NodeId, Encoding] = field(default_factory=dict)
    _next: int = 0

    @classmethod
    def of(
        cls, graph: Graph, roots: Sequence[NodeId], topology: TopologySnapshot, bounds: Mapping[SymId, int]
    ) -> Draft:
        writes = [node.id for node in graph if isinstance(node.op, SlabWrite)]
        live = reachable(graph, [*roots, *writes])
        dead = tuple(
            node.id
            for node in graph
            if node.id not in live and isinstance(node.op, Const) and node.op.role is ConstRole.DATA
        )
        nodes = {node.id: node for node in graph if node.id in live}
        return cls(graph.id, nodes, tuple(roots), topology, dict(bounds), dead, _next=len(graph))

    def add(self, op: Op, inputs: Sequence[NodeId]) -> NodeId:
        """A new node over existing ones; its shape follows from the op's rule."""
        value = op.infer(*(self.nodes[i] for i in inputs))
        node = NodeId(self._next)
        self._next += 1
        self.nodes[node] = Node(node, op, tuple(inputs), value.shape, value.dtype)
        return node

    def replace(self, node: NodeId, op: Op, inputs: Sequence[NodeId]) -> None:
        """Another op over other inputs, yielding the same shape and dtype under the same id."""
        old = self.nodes[node]
        assert op.infer(*(self.nodes[i] for i in inputs)) == (old.shape, old.dtype), "readers saw another"
        self.nodes[node] = Node(node, op, tuple(inputs), old.shape, old.dtype)

    def stand_for(self, node: NodeId, region: Op, inputs: Sequence[NodeId]) -> None:
        """A region in its last node's place: it repeats what led to that value, so the value is the same."""
        old = self.nodes[node]
        self.nodes[node] = Node(node, region, tuple(inputs), old.shape, old.dtype)

    def rewire(self, node: NodeId, inputs: Sequence[NodeId]) -> None:
        """The same op over other inputs."""
        old = self.nodes[node]
        self.nodes[node] = Node(old.id, old.op, tuple(inputs), old.shape, old.dtype)

    def replace_op(self, node: NodeId, op: Op) -> None:
        """Another op over the same inputs, yielding the same shape and dtype."""
        old = self.nodes[node]
        self.nodes[node] = Node(old.id, op, old.inputs, old.shape, old.dtype)

    def remove(self, nodes: Iterable[NodeId]) -> None:
        """Nodes that another now stands for; nothing reads them any more."""
        for node in nodes:
            del self.nodes[node]
            del self.placement[node]

    def sweep(self) -> None:
        """Let go of what neither a root nor an in-place write needs any more."""
        writes = [node.id for node in self.nodes.values() if node.op.writes]
        live = reachable(self.nodes, [*self.roots, *writes])
        self.nodes = {i: node for i, node in self.nodes.items() if i in live}
        self.placement = {i: place for i, place in self.placement.items() if i in live}
        self.sources = {i: encoding for i, encoding in self.sources.items() if i in live}

    def readers(self) -> Mapping[NodeId, list[NodeId]]:
        """Who reads each value: a node stands there as often as it reads it."""
        readers: dict[NodeId, list[NodeId]] = defaultdict(list)
        for node in self.nodes.values():
            for i in node.inputs:
                readers[i].append(node.id)
        return readers

    def consts(self) -> Iterable[tuple[Node, Const]]:
        """The live Consts."""
        for node in list(self.nodes.values()):
            if isinstance(node.op, Const):
                yield node, node.op

    def topological(self) -> list[Node]:
        """Nodes after their inputs; ids alone don't tell once passes have added nodes."""
        order: list[Node] = []
        done: set[NodeId] = set()
        for start in self.nodes:
            stack = [start]
            while stack:
                node = self.nodes[stack[-1]]
                waiting = [i for i in reversed(node.inputs) if i not in done]
                if waiting:
                    stack += waiting
                    continue
                stack.pop()
                if node.id not in done:
                    done.add(node.id)
                    order.append(node)
        return order


def reachable(nodes: Graph | Mapping[NodeId, Node], roots: Iterable[NodeId]) -> set[NodeId]:
    """The roots and whatever they are made from."""
    seen: set[NodeId] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(nodes[node].inputs)
    return seen
