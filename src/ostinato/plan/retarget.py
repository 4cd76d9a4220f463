"""The same plan for another device: what is compared when two devices are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ostinato.device.topology import TopologySnapshot
from ostinato.errors.device import NoKernel
from ostinato.ir.graph import Node
from ostinato.ir.location import HOST, Location
from ostinato.ir.ops.attention import Attention
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.ops.movement import Copy
from ostinato.ir.ops.region import Region
from ostinato.ir.ops.slab import SlabWrite
from ostinato.ir.shape import NodeId
from ostinato.plan.draft import Draft
from ostinato.plan.layout import choose_layouts
from ostinato.plan.memory import plan_memory
from ostinato.plan.optimized import OptimizedGraph
from ostinato.plan.placement import check_kernel
from ostinato.plan.schedule import aliases, schedule


def retarget(
    optimized: OptimizedGraph, source: Location, target: Location, topology: TopologySnapshot
) -> OptimizedGraph:
    """`optimized` with `target` in the place of `source`: the same nodes under the same ids, regions,
    roundings and joined weights included. Only stamps change, and the packed forms of weights and slabs,
    which become the target's. A recipe's names and row order stay, so `target` must be a device that packs no
    weights of this model otherwise. Raises NoDevice, NoKernel.
    """
    traits = topology[target]
    draft = Draft(
        graph_id=optimized.graph_id,
        nodes=dict(optimized.nodes),
        roots=optimized.roots,
        topology=topology,
        bounds=optimized.bounds,
        dead_data=optimized.dead_data,
        placement={i: target if at == source else at for i, at in optimized.placement.items()},
        order=list(optimized.order),
    )
    values = value_slabs(optimized.nodes)
    for node in optimized.nodes.values():
        if isinstance(node.op, Copy) and node.op.target == source:
            draft.replace_op(node.id, Copy(target))
        elif isinstance(node.op, Const) and node.op.role is ConstRole.WEIGHT:
            draft.replace_op(node.id, replace(node.op, encoding=optimized.sources[node.id]))
        elif _is_slab(node) and optimized.placement[node.id] == source:
            assert isinstance(node.op, Const)
            layout = traits.kv_layouts.get(optimized.sources[node.id])
            if layout is None:
                raise NoKernel(node.op.label, str(node.dtype), str(node.op.encoding), str(target))
            encoding = layout.v if node.id in values else layout.k
            draft.replace_op(node.id, replace(node.op, encoding=encoding))
    for node in draft.nodes.values():
        location = draft.placement[node.id]
        if location != HOST:
            check_kernel(draft, node, topology[location], location)
    choose_layouts(draft)
    return OptimizedGraph.of(draft, plan_memory(draft, schedule(draft)), aliases(draft))


def value_slabs(nodes: Mapping[NodeId, Node]) -> set[NodeId]:
    """The slabs that attention reads as V; all others are K."""
    found = set()
    for node in nodes.values():
        v = None
        if isinstance(node.op, Attention):
            v = node.inputs[2]
        elif isinstance(node.op, Region) and isinstance(node.op.body[-1][0], Attention):
            v = node.inputs[node.op.writes[1]]
        while v is not None and isinstance(nodes[v].op, SlabWrite | Copy):
            v = nodes[v].inputs[0]
        if v is not None:
            found.add(v)
    return found


def _is_slab(node: Node) -> bool:
    return isinstance(node.op, Const) and node.op.role is ConstRole.SLAB
