"""Pass: an execution order, cut into segments."""

from __future__ import annotations

import heapq
from collections import defaultdict

from ostinato.device.segment import Segment, Slot
from ostinato.errors.graph import DataDependentExtent
from ostinato.ir.encoding import plain
from ostinato.ir.graph import Node
from ostinato.ir.location import HOST
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.ops.movement import Copy
from ostinato.ir.ops.slab import SlabWrite
from ostinato.ir.shape import NodeId, is_sized, show
from ostinato.plan.draft import Draft
from ostinato.plan.optimized import CopyStep, Step


def ordered(draft: Draft) -> list[Node]:
    """All nodes, each after its inputs and after what the draft orders before it, else by id; what goes home
    goes last, so that it cuts no segment."""
    after: dict[NodeId, list[NodeId]] = defaultdict(list)
    waiting: dict[NodeId, int] = dict.fromkeys(draft.nodes, 0)
    edges = {(i, node.id) for node in draft.nodes.values() for i in node.inputs} | set(draft.order)
    for first, second in edges:
        after[first].append(second)
        waiting[second] += 1

    def rank(node: NodeId) -> tuple[bool, NodeId]:
        op = draft.nodes[node].op
        return isinstance(op, Copy) and op.target == HOST, node

    ready = [rank(node) for node, count in waiting.items() if not count]
    heapq.heapify(ready)
    order: list[Node] = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(draft.nodes[node])
        for follower in after[node]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, rank(follower))
    assert len(order) == len(draft.nodes), "passes add no cycles"
    return order


def aliases(draft: Draft) -> dict[NodeId, NodeId]:
    """Write → the Const of the slab it writes into."""
    result: dict[NodeId, NodeId] = {}
    for node in draft.topological():
        if isinstance(node.op, SlabWrite):
            slab = node.inputs[0]
            result[node.id] = result.get(slab, slab)
    return result


def schedule(draft: Draft) -> tuple[Step, ...]:
    """Segments (maximal runs of nodes on one device) and the copies between them.

    Raises DataDependentExtent."""
    users: dict[NodeId, set[NodeId]] = defaultdict(set)
    for node in draft.nodes.values():
        for i in node.inputs:
            users[i].add(node.id)
    steps: list[Step] = []
    run: list[Node] = []

    def close() -> None:
        if run:
            steps.append(_segment(draft, tuple(run), users))
            run.clear()

    for node in ordered(draft):
        if isinstance(node.op, Const):
            continue
        if isinstance(node.op, Copy):
            (source,) = node.inputs
            close()
            steps.append(CopyStep(node.id, source, draft.placement[source], draft.placement[node.id]))
            continue
        if run and draft.placement[run[0].id] != draft.placement[node.id]:
            close()
        run.append(node)
    close()
    return tuple(steps)


def _segment(draft: Draft, nodes: tuple[Node, ...], users: dict[NodeId, set[NodeId]]) -> Segment:
    inside = {node.id for node in nodes}
    inputs = dict.fromkeys(i for node in nodes for i in node.inputs if i not in inside)
    outputs = [n.id for n in nodes if not isinstance(n.op, SlabWrite) and not users[n.id] <= inside]
    for i in outputs:
        check_sized(draft.nodes[i])
    return Segment(
        location=draft.placement[nodes[0].id],
        nodes=nodes,
        inputs=tuple(_slot(draft, i) for i in inputs),
        outputs=tuple(_slot(draft, i) for i in outputs),
        bounds=draft.bounds,
    )


def check_sized(node: Node) -> None:
    """Raises DataDependentExtent for a value that no storage can be allocated for before the run."""
    if not is_sized(node.shape):
        raise DataDependentExtent(f"%{node.id} {node.op.name}", show(node.shape))


def _slot(draft: Draft, node_id: NodeId) -> Slot:
    node = draft.nodes[node_id]
    if isinstance(node.op, Const):
        changing = node.op.role is ConstRole.DATA
        return Slot(node_id, node.op.label, node.shape, node.dtype, node.op.encoding, changing)
    label = f"%{node_id} {node.op.name}"
    slab = node
    while isinstance(slab.op, SlabWrite):  # what a write returns is its slab
        slab = draft.nodes[slab.inputs[0]]
    encoding = slab.op.encoding if isinstance(slab.op, Const) else plain(node.dtype)
    return Slot(node_id, label, node.shape, node.dtype, encoding, changing=slab is node)
