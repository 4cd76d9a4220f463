"""Pass: operands are rounded where the device's products want them rounded."""

from __future__ import annotations

from ostinato.errors.device import NoKernel
from ostinato.ir.graph import Node
from ostinato.ir.location import Location
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.ops.product import Linear
from ostinato.ir.ops.quantize import QuantizeRows
from ostinato.ir.shape import NodeId
from ostinato.plan.draft import Draft
from ostinato.plan.placement import insert


def insert_quantization(draft: Draft) -> None:
    """Put QuantizeRows before every product whose weight's layout asks for it, one for each operand, device
    and block. What changes results is in the graph, so every device that runs the plan rounds alike.

    Raises NoKernel."""
    rounded: dict[tuple[NodeId, Location, int], NodeId] = {}
    for node in list(draft.nodes.values()):
        block = wanted_block(draft, node)
        if block is not None:
            x, *weights = node.inputs
            location = draft.placement[node.id]
            key = (x, location, block)
            if key not in rounded:
                rounded[key] = insert(draft, QuantizeRows(block), [x], location)
            draft.rewire(node.id, [rounded[key], *weights])


def wanted_block(draft: Draft, node: Node) -> int | None:
    """The block in which a node's first operand is to be rounded; raises NoKernel where it doesn't divide."""
    if not isinstance(node.op, Linear):
        return None
    weight, location = draft.nodes[node.inputs[1]], draft.placement[node.id]
    if not isinstance(weight.op, Const) or weight.op.role is not ConstRole.WEIGHT:
        return None
    layout = draft.topology[location].layout(weight.op.encoding, len(weight.shape))
    block = None if layout is None else layout.quantize
    columns = weight.shape[1]
    if block is not None and (not isinstance(columns, int) or columns % block):
        what = f"{node.op.name} over {columns} columns in blocks of {block}"
        raise NoKernel(what, str(node.dtype), str(weight.op.encoding), str(location))
    return block
