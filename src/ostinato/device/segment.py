"""The part of a plan that one device compiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
class Segment:
    """Nodes in execution order, all on one device; `inputs` come from outside, `outputs` are needed there.

    `bounds` gives each symbol's maximum in this plan.
    """

    location: Location
    nodes: tuple[Node, ...]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    bounds: Mapping[SymId, int]
