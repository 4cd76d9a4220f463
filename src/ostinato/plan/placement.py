"""Pass: every node gets the device that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ostinato.device.traits import Traits
from ostinato.errors.device import NoKernel
from ostinato.ir.encoding import element, plain
from ostinato.ir.graph import Node
from ostinato.ir.location import HOST, Location
from ostinato.ir.op import Op
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.ops.movement import Copy
from ostinato.ir.ops.region import Region
from ostinato.ir.ops.slab import SlabWrite
from ostinato.ir.shape import NodeId
from ostinato.plan.draft import Draft


def place(draft: Draft, default: Location, hints: Mapping[NodeId, Location]) -> None:
    """Stamp locations, then check that each device has the kernels; raises NoDevice or NoKernel.

    Weights and slabs are heavy: they stay where a hint (or the default) puts them, and an op runs where
    its weight or slab lies, else where its first placed operand lies; a write always runs at its slab. Data
    is uploaded where a hint says, else to its first reader.
    """
    heavy = set()
    for node, const in draft.consts():
        if const.role is not ConstRole.DATA:
            draft.placement[node.id] = hints.get(node.id, default)
            heavy.add(node.id)
        elif node.id in hints:
            draft.placement[node.id] = hints[node.id]
    order = draft.topological()
    for node in order:
        if node.id in draft.placement or (isinstance(node.op, Const) and node.op.role is ConstRole.DATA):
            continue
        anchored = [i for i in node.inputs if i in heavy]
        placed = [i for i in node.inputs if i in draft.placement]
        inherited = [draft.placement[i] for i in anchored or placed]
        draft.placement[node.id] = hints.get(node.id) or (inherited or [default])[0]
        if isinstance(node.op, SlabWrite):  # elsewhere it would write into a copy
            draft.placement[node.id] = draft.placement[node.inputs[0]]
            heavy.add(node.id)
    for node in order:
        for i in node.inputs:
            draft.placement.setdefault(i, _reader_location(draft, node, default))
    for node in order:
        location = draft.placement[node.id]
        if location != HOST:
            check_kernel(draft, node, draft.topology[location], location)


def _reader_location(draft: Draft, node: Node, default: Location) -> Location:
    location = draft.placement[node.id]
    return default if location == HOST else location


def insert(draft: Draft, op: Op, inputs: Sequence[NodeId], location: Location) -> NodeId:
    """A new node that a pass wants at `location`; raises NoKernel."""
    node = draft.add(op, inputs)
    draft.placement[node] = location
    check_kernel(draft, draft.nodes[node], draft.topology[location], location)
    return node


def check_kernel(draft: Draft, node: Node, traits: Traits, location: Location) -> None:
    """Raises NoKernel unless `location` has the op for this dtype and the weights' and slabs' encodings."""
    if isinstance(node.op, Const | Copy):
        return
    known = type(node.op) in traits.ops or (isinstance(node.op, Region) and node.op.pattern in traits.regions)
    operands = (draft.nodes[i].op for i in node.inputs)
    heavy = [op for op in operands if isinstance(op, Const) and op.role is not ConstRole.DATA]
    unreadable = [const.encoding for const in heavy if not _readable(const, traits)]
    if unreadable or not known or node.dtype not in traits.dtypes:
        encoding = (unreadable or [const.encoding for const in heavy] or [plain(node.dtype)])[0]
        raise NoKernel(node.op.name, str(node.dtype), str(encoding), str(location))


def _readable(const: Const, traits: Traits) -> bool:
    if const.role is ConstRole.SLAB:
        kv = traits.kv_type(const.encoding)
        return kv is not None and const.dtype is element(kv)
    return traits.layout(const.encoding, len(const.shape)) is not None
