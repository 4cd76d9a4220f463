"""The immutable result of optimisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ostinato.device.segment import Segment
from ostinato.ir.encoding import Encoding
from ostinato.ir.graph import Node
from ostinato.ir.location import Location
from ostinato.ir.shape import NodeId
from ostinato.ir.symbols import SymId
from ostinato.plan.draft import Draft


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Bring the value `source` to `target` as the node `node`."""

    node: NodeId
    source: NodeId
    origin: Location
    target: Location


Step = Segment | CopyStep


@dataclass(frozen=True, eq=False)
class OptimizedGraph:
    """A plan: structure and topology generation only; no data, no storage, no symbol values. Shared.

    `roots` are the Copies to the host, in the order the caller gave the values. `consts` are the live
    Consts that must be bound, `dead_data` the data Consts that nothing reads: they need no data.
    `order` are pairs that run one before the other for a slab's sake; `sources` are the weights' encodings in
    the file and the slabs' KV types. `aliases` maps a value that lives in a slab to the Const of that slab.
    """

    graph_id: int
    generation: int
    nodes: Mapping[NodeId, Node]
    placement: Mapping[NodeId, Location]
    roots: tuple[NodeId, ...]
    order: tuple[tuple[NodeId, NodeId], ...]
    sources: Mapping[NodeId, Encoding]
    consts: tuple[NodeId, ...]
    dead_data: tuple[NodeId, ...]
    aliases: Mapping[NodeId, NodeId]
    bounds: Mapping[SymId, int]
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, draft: Draft, steps: Sequence[Step], aliases: Mapping[NodeId, NodeId]) -> OptimizedGraph:
        """What a draft has become; later changes to it don't show."""
        return cls(
            graph_id=draft.graph_id,
            generation=draft.topology.generation,
            nodes=MappingProxyType(dict(draft.nodes)),
            placement=MappingProxyType(dict(draft.placement)),
            roots=draft.roots,
            order=tuple(draft.order),
            sources=MappingProxyType(dict(draft.sources)),
            consts=tuple(node.id for node, _ in draft.consts()),
            dead_data=draft.dead_data,
            aliases=MappingProxyType(dict(aliases)),
            bounds=MappingProxyType(dict(draft.bounds)),
            steps=tuple(steps),
        )
