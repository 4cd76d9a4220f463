"""Pass: whoever reads a slab as it was before a write runs before it, or reads a copy made before it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ostinato.errors.graph import WriteConflict
from ostinato.ir.graph import Node
from ostinato.ir.ops.const import Const
from ostinato.ir.ops.movement import Clone, Copy
from ostinato.ir.ops.slab import SlabWrite
from ostinato.ir.shape import NodeId
from ostinato.plan.draft import Draft
from ostinato.plan.placement import insert


def keep_old_states(draft: Draft) -> None:
    """Order every reader of a slab's state before the write that ends it; where the reader needs that write,
    or its value leaves the segment, let it read a Clone instead. Raises WriteConflict, NoKernel.

    A state is seen through any op that may share its operand's memory, so those count as the state itself.
    """
    ended: dict[NodeId, Node] = {}
    for node in list(draft.nodes.values()):
        if isinstance(node.op, SlabWrite):
            state = node.inputs[0]
            if state in ended:
                raise _conflict(draft, ended[state], node)
            ended[state] = node
    read = {
        i
        for node in draft.nodes.values()
        for at, i in enumerate(node.inputs)
        if i in ended and (at or ended[i] is not node)
    }
    if read:  # never in a model's step: it reads what its writes return
        flow = _Flow.of(draft)
        for state in sorted(read):
            _Hazard(draft, flow, ended[state]).resolve(state)


@dataclass
class _Flow:
    """Who runs after whom: the readers of each value, and the order that hazards add."""

    readers: dict[NodeId, list[NodeId]]
    later: dict[NodeId, list[NodeId]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, draft: Draft) -> _Flow:
        readers: dict[NodeId, list[NodeId]] = defaultdict(list)
        for node in draft.nodes.values():
            for i in dict.fromkeys(node.inputs):
                readers[i].append(node.id)
        return cls(readers)

    def reaches(self, first: NodeId, last: NodeId) -> bool:
        """`last` can't run before `first`."""
        seen: set[NodeId] = set()
        stack = [first]
        while stack:
            node = stack.pop()
            if node == last:
                return True
            if node not in seen:
                seen.add(node)
                stack += [*self.readers[node], *self.later[node]]
        return False


@dataclass
class _Hazard:
    """One write, and the views of the state that it ends."""

    draft: Draft
    flow: _Flow
    write: Node
    clones: dict[NodeId, NodeId] = field(default_factory=dict)

    def resolve(self, state: NodeId) -> None:
        views = [state]
        while views:
            view = views.pop()
            for reader in list(self.flow.readers[view]):
                if not must_clone(self.draft, self.flow, self.write, view, reader):
                    if reader != self.write.id:
                        run_before(self.draft, self.flow, reader, self.write)
                        if self.draft.nodes[reader].op.may_alias:
                            views.append(reader)
                else:
                    self._read_a_clone(view, reader)

    def _read_a_clone(self, view: NodeId, reader: NodeId) -> None:
        if view not in self.clones:
            self.clones[view] = self._clone(view)
        clone, inputs = self.clones[view], list(self.draft.nodes[reader].inputs)
        # the state that a write goes into is its first operand, and stays
        first = 1 if reader == self.write.id else 0
        inputs[first:] = [clone if i == view else i for i in inputs[first:]]
        self.draft.rewire(reader, inputs)
        self.flow.readers[clone].append(reader)
        if view not in inputs:
            self.flow.readers[view].remove(reader)

    def _clone(self, view: NodeId) -> NodeId:
        clone = insert(self.draft, Clone(), [view], self.draft.placement[view])
        self.flow.readers[view].append(clone)
        run_before(self.draft, self.flow, clone, self.write)
        return clone


def run_before(draft: Draft, flow: _Flow, reader: NodeId, write: Node) -> None:
    """`write` waits for `reader`; it doesn't reach it, so the order stays free of cycles."""
    draft.order.append((reader, write.id))
    flow.later[reader].append(write.id)


def must_clone(draft: Draft, flow: _Flow, write: Node, view: NodeId, reader: NodeId) -> bool:
    """Whether `reader` would see the written data if it read `view` itself."""
    if reader == write.id:
        return view in write.inputs[1:]  # it reads while it writes
    node = draft.nodes[reader]
    # what a Copy takes away is fetched at the end of a segment, or later
    return isinstance(node.op, Copy) or flow.reaches(write.id, reader)


def _conflict(draft: Draft, first: Node, second: Node) -> WriteConflict:
    slab = draft.nodes[first.inputs[0]]
    while isinstance(slab.op, SlabWrite):
        slab = draft.nodes[slab.inputs[0]]
    label = slab.op.label if isinstance(slab.op, Const) else f"%{slab.id}"
    names = [f"{node.op.name} %{node.id}" for node in (first, second)]
    return WriteConflict(label, names[0], names[1])
