"""The part of a plan that one device compiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding
from ostinato.ir.graph import Node
from ostinato.ir.location import Location
from ostinato.ir.shape import NodeId, Shape
from ostinato.ir.symbols import SymId


@dataclass(frozen=True, slots=True)
class Slot:
    """A value that crosses a segment's border: what must be bound there. A `changing` one may be another
    storage in every run; weights and slabs stay those that were bound."""

    node: NodeId
    label: str
    shape: Shape
    dtype: DType
    encoding: Encoding
    changing: bool


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """One arena of `nbytes` for the values inside a segment: `offsets` says where each lies, by bytes.

    Values share memory where their lives don't overlap. Without an offset are: outputs and what a write
    returns, which have storages; views, which lie in their operand; values whose size only the run knows.
    """

    offsets: Mapping[NodeId, int]
    nbytes: int


NO_MEMORY = MemoryPlan(MappingProxyType({}), 0)


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes in execution order, all on one device; `inputs` come from outside, `outputs` are needed there.

    `bounds` gives each symbol's maximum in this plan; `memory` has room for values of that size.
    """

    location: Location
    nodes: tuple[Node, ...]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    bounds: Mapping[SymId, int]
    memory: MemoryPlan = NO_MEMORY
