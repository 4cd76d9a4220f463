"""Pass: an execution order in which in-place writes wait for the readers of what they overwrite."""

from __future__ import annotations

import heapq
from collections import defaultdict

from ostinato.device.segment import Segment, Slot
from ostinato.errors.graph import WriteConflict
from ostinato.ir.encoding import plain
from ostinato.ir.graph import Node
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.ops.movement import Copy
from ostinato.ir.ops.slab import SlabWrite
from ostinato.ir.shape import NodeId
from ostinato.plan.draft import Draft
from ostinato.plan.optimized import CopyStep, Step


def write_order(draft: Draft) -> list[tuple[NodeId, NodeId]]:
    """(reader, write) pairs: who reads a slab as it was before a write must run before that write."""
    readers: dict[NodeId, list[NodeId]] = defaultdict(list)
    for node in draft.nodes.values():
        for i in node.inputs:
            readers[i].append(node.id)
    return [
        (reader, node.id)
        for node in draft.nodes.values()
        if isinstance(node.op, SlabWrite)
        for reader in readers[node.inputs[0]]
        if reader != node.id
    ]


def ordered(draft: Draft) -> list[Node]:
    """All nodes, each after its inputs and its write order, else by id; raises WriteConflict."""
    after: dict[NodeId, list[NodeId]] = defaultdict(list)
    waiting: dict[NodeId, int] = dict.fromkeys(draft.nodes, 0)
    edges = {(i, node.id) for node in draft.nodes.values() for i in node.inputs} | set(write_order(draft))
    for first, second in edges:
        after[first].append(second)
        waiting[second] += 1
    ready = [node for node, count in waiting.items() if not count]
    heapq.heapify(ready)
    order: list[Node] = []
    while ready:
        node = heapq.heappop(ready)
        order.append(draft.nodes[node])
        for follower in after[node]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, follower)
    if len(order) < len(draft.nodes):
        raise _conflict(draft, {node for node, count in waiting.items() if count})
    return order


def _conflict(draft: Draft, stuck: set[NodeId]) -> WriteConflict:
    reader, write = next(pair for pair in write_order(draft) if set(pair) <= stuck)
    slab = draft.nodes[aliases(draft).get(write, write)]
    label = slab.op.label if isinstance(slab.op, Const) else f"%{slab.id}"
    return WriteConflict(label, f"{draft.nodes[reader].op.name} %{reader}")


def aliases(draft: Draft) -> dict[NodeId, NodeId]:
    """Write → the Const of the slab it writes into."""
    result: dict[NodeId, NodeId] = {}
    for node in draft.topological():
        if isinstance(node.op, SlabWrite):
            slab = node.inputs[0]
            result[node.id] = result.get(slab, slab)
    return result


def schedule(draft: Draft) -> tuple[Step, ...]:
    """Segments (maximal runs of nodes on one device) and the copies between them."""
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
    return Segment(
        location=draft.placement[nodes[0].id],
        nodes=nodes,
        inputs=tuple(_slot(draft, i) for i in inputs),
        outputs=tuple(_slot(draft, i) for i in outputs),
        bounds=draft.bounds,
    )


def _slot(draft: Draft, node_id: NodeId) -> Slot:
    node = draft.nodes[node_id]
    if isinstance(node.op, Const):
        changing = node.op.role is ConstRole.DATA
        return Slot(node_id, node.op.label, node.shape, node.dtype, node.op.encoding, changing)
    in_slab = isinstance(node.op, SlabWrite)
    label = f"%{node_id} {node.op.name}"
    return Slot(node_id, label, node.shape, node.dtype, plain(node.dtype), changing=not in_slab)
