"""Pass: where the values inside a segment lie, from how long each is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from ostinato.device.segment import MemoryPlan, Segment
from ostinato.ir.graph import Node
from ostinato.ir.ops.slab import SlabWrite
from ostinato.ir.shape import DataDim, NodeId
from ostinato.ir.symbols import SymId
from ostinato.plan.draft import Draft
from ostinato.plan.optimized import Step

ALIGN = 64
"""Bytes: a cache line, and the widest vector."""

Life = tuple[int, int, int]
"""First and last step at which a value's memory is its own, and its bytes."""


def plan_memory(draft: Draft, steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same steps, each segment with its MemoryPlan."""
    return tuple(
        replace(step, memory=memory_plan(draft, step)) if isinstance(step, Segment) else step
        for step in steps
    )


def memory_plan(draft: Draft, segment: Segment) -> MemoryPlan:
    """Offsets for what needs memory of its own. A step's result never lies where that step still reads."""
    outside = {slot.node for slot in segment.outputs}
    home: dict[NodeId, NodeId] = {}
    """Where a value's bytes are: those of views in what they show."""
    lives: dict[NodeId, tuple[int, int]] = {}
    sizes: dict[NodeId, int] = {}
    for at, node in enumerate(segment.nodes):
        for i in node.inputs:
            _extend(lives, home.get(i), at)
        nbytes = sized(draft, node)
        if node.op.may_alias and node.inputs[0] in home:
            home[node.id] = home[node.inputs[0]]
            if node.id in outside:  # it may be taken home after the last step
                _extend(lives, home[node.id], len(segment.nodes))
        elif nbytes is not None and not (elsewhere(node) or node.id in outside):
            home[node.id] = node.id
            lives[node.id], sizes[node.id] = (at, at), nbytes
    offsets, total = assign([(*lives[node], sizes[node]) for node in sizes])
    return MemoryPlan(MappingProxyType(dict(zip(sizes, offsets, strict=True))), total)


def _extend(lives: dict[NodeId, tuple[int, int]], node: NodeId | None, at: int) -> None:
    if node is not None:
        first, last = lives[node]
        lives[node] = (first, max(last, at))


def elsewhere(node: Node) -> bool:
    """Whether a value lies in memory that was there before: a view, a slab."""
    return node.op.may_alias or isinstance(node.op, SlabWrite)


def sized(draft: Draft, node: Node) -> int | None:
    """Bytes of a value at the plan's bounds; None where only a run can tell."""
    total = node.dtype.nbytes
    for dim in node.shape:
        extent = (
            None if isinstance(dim, DataDim) else draft.bounds.get(dim) if isinstance(dim, SymId) else dim
        )
        if extent is None:
            return None
        total *= extent
    return total


def assign(lives: Sequence[Life]) -> tuple[list[int], int]:
    """An offset for each life, a multiple of ALIGN, and the bytes of all: lives whose spans (ends included)
    meet don't overlap. In the order of their beginnings, each takes the tightest gap that fits."""
    offsets = [0] * len(lives)
    total = 0
    taken: list[tuple[int, int, int]] = []  # (offset, end, last step), by offset
    for at in sorted(range(len(lives)), key=lambda i: (lives[i][0], -lives[i][2])):
        first, last, nbytes = lives[at]
        size = -(-nbytes // ALIGN) * ALIGN
        taken = [entry for entry in taken if entry[2] >= first]
        place, room, end = None, None, 0
        for offset, stop, _ in taken:
            gap = offset - end
            if size <= gap and (room is None or gap < room):
                place, room = end, gap
            end = max(end, stop)
        offsets[at] = end if place is None else place
        total = max(total, offsets[at] + size)
        taken.append((offsets[at], offsets[at] + size, last))
        taken.sort()
    return offsets, total
