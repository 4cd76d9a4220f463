"""Pass: operands come to the device that reads them."""

from __future__ import annotations

from ostinato.ir.location import HOST, Location
from ostinato.ir.ops.movement import Copy
from ostinato.ir.shape import NodeId
from ostinato.plan.draft import Draft


def make_resident(draft: Draft) -> None:
    """Insert a Copy on every edge that crosses devices, one for each value and target."""
    copies: dict[tuple[NodeId, Location], NodeId] = {}
    for node in draft.topological():
        target = draft.placement[node.id]
        if target == HOST:
            continue
        inputs = []
        for i in node.inputs:
            if draft.placement[i] != target:
                if (i, target) not in copies:
                    copy = copies[i, target] = draft.add(Copy(target), [i])
                    draft.placement[copy] = target
                i = copies[i, target]
            inputs.append(i)
        if tuple(inputs) != node.inputs:
            draft.rewire(node.id, inputs)
