"""Pass: every node gets the device that runs it."""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.device.traits import Traits
from ostinato.errors.device import NoKernel
from ostinato.ir.graph import Node
from ostinato.ir.location import HOST, Location
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.ops.movement import Copy
from ostinato.ir.ops.slab import SlabWrite
from ostinato.ir.shape import NodeId
from ostinato.plan.draft import Draft


def place(draft: Draft, default: Location, hints: Mapping[NodeId, Location]) -> None:
    """Stamp locations, then check that each device has the kernels; raises NoDevice or NoKernel.

    Weights and slabs are heavy: they stay where a hint (or the default) puts them, and an op runs where
    its weight or slab lies, else where its first placed operand lies. Data is uploaded to its first reader.
    """
    heavy = set()
    for node, const in draft.consts():
        if const.role is not ConstRole.DATA:
            draft.placement[node.id] = hints.get(node.id, default)
            heavy.add(node.id)
    order = draft.topological()
    for node in order:
        if node.id in draft.placement or (isinstance(node.op, Const) and node.op.role is ConstRole.DATA):
            continue
        anchored = [i for i in node.inputs if i in heavy]
        placed = [i for i in node.inputs if i in draft.placement]
        source = (anchored or placed)[:1]
        draft.placement[node.id] = hints.get(node.id) or (draft.placement[source[0]] if source else default)
        if isinstance(node.op, SlabWrite):
            heavy.add(node.id)
    for node in order:
        for i in node.inputs:
            draft.placement.setdefault(i, _reader_location(draft, node, default))
    for node in order:
        location = draft.placement[node.id]
        if location != HOST:
            _check_kernel(draft, node, draft.topology[location], location)


def _reader_location(draft: Draft, node: Node, default: Location) -> Location:
    location = draft.placement[node.id]
    return default if location == HOST else location


def _check_kernel(draft: Draft, node: Node, traits: Traits, location: Location) -> None:
    if isinstance(node.op, Const | Copy):
        return
    encoding = str(node.dtype)
    supported = type(node.op) in traits.ops and node.dtype in traits.dtypes
    for operand in (draft.nodes[i] for i in node.inputs):
        if isinstance(operand.op, Const) and operand.op.role is ConstRole.WEIGHT:
            encoding = operand.op.encoding.name
            supported = supported and operand.op.encoding in traits.weight_layouts
        elif isinstance(operand.op, Const) and operand.op.role is ConstRole.SLAB:
            encoding = operand.op.encoding.name
            supported = supported and operand.dtype in traits.kv_dtypes
        if not supported:
            raise NoKernel(node.op.name, str(node.dtype), encoding, str(location))
    if not supported:
        raise NoKernel(node.op.name, str(node.dtype), encoding, str(location))
