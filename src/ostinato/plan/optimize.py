"""The pipeline: from a graph and its roots to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ostinato.device.topology import TopologySnapshot
from ostinato.ir.graph import Graph
from ostinato.ir.location import Location
from ostinato.ir.shape import NodeId
from ostinato.ir.symbols import SymId
from ostinato.plan.draft import Draft
from ostinato.plan.hazards import keep_old_states
from ostinato.plan.joins import join_products
from ostinato.plan.layout import choose_layouts
from ostinato.plan.memory import plan_memory
from ostinato.plan.numerics import insert_rounding
from ostinato.plan.optimized import OptimizedGraph
from ostinato.plan.placement import place
from ostinato.plan.prepare import prepare
from ostinato.plan.regions import form_regions
from ostinato.plan.residency import make_resident
from ostinato.plan.schedule import aliases, schedule


def optimize(
    graph: Graph,
    roots: Sequence[NodeId],
    topology: TopologySnapshot,
    *,
    default: Location,
    bounds: Mapping[SymId, int],
    hints: Mapping[NodeId, Location] | None = None,
) -> OptimizedGraph:
    """Plan `roots` of `graph` on the devices of `topology`.

    `bounds` are the symbols' maxima in this plan; `hints` pin Consts or nodes to devices. The graph is
    not changed. Raises NoDevice, NoKernel, WriteConflict or DataDependentExtent.
    """
    draft = Draft.of(graph, roots, topology, bounds)
    prepare(draft)
    place(draft, default, hints or {})
    make_resident(draft)
    keep_old_states(draft)
    insert_rounding(draft)
    join_products(draft)
    choose_layouts(draft)
    form_regions(draft)
    steps = plan_memory(draft, schedule(draft))
    return OptimizedGraph.of(draft, steps, aliases(draft))
