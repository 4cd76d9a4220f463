"""The immutable result of optimisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ostinato.device.segment import Segment
from ostinato.ir.graph import Node
from ostinato.ir.location import Location
from ostinato.ir.shape import NodeId
from ostinato.ir.symbols import SymId


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
    `aliases` maps a value that lives in a slab to the Const of that slab.
    """

    graph_id: int
    generation: int
    nodes: Mapping[NodeId, Node]
    placement: Mapping[NodeId, Location]
    roots: tuple[NodeId, ...]
    consts: tuple[NodeId, ...]
    dead_data: tuple[NodeId, ...]
    aliases: Mapping[NodeId, NodeId]
    bounds: Mapping[SymId, int]
    steps: tuple[Step, ...]
