"""Pass: operands are rounded where the device's products want them rounded."""

from __future__ import annotations

from ostinato.errors.device import NoKernel
from ostinato.ir.graph import Node
from ostinato.ir.location import Location
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.ops.product import Linear
from ostinato.ir.ops.quantize import Rounding
from ostinato.ir.shape import NodeId
from ostinato.plan.draft import Draft
from ostinato.plan.placement import insert


def insert_rounding(draft: Draft) -> None:
    """Put the rounding that a weight's layout asks for before every product with it, one for each operand,
    device and rounding. What changes results is in the graph: every device that runs the plan rounds alike.

    Raises NoKernel."""
    rounded: dict[tuple[NodeId, Location, Rounding], NodeId] = {}
    for node in list(draft.nodes.values()):
        rounding = wanted_rounding(draft, node)
        if rounding is not None:
            x, *weights = node.inputs
            location = draft.placement[node.id]
            key = (x, location, rounding)
            if key not in rounded:
                rounded[key] = insert(draft, rounding, [x], location)
            draft.rewire(node.id, [rounded[key], *weights])


def wanted_rounding(draft: Draft, node: Node) -> Rounding | None:
    """How a node's first operand is to be rounded; raises NoKernel where it can't be."""
    if not isinstance(node.op, Linear):
        return None
    weight, location = draft.nodes[node.inputs[1]], draft.placement[node.id]
    if not isinstance(weight.op, Const) or weight.op.role is not ConstRole.WEIGHT:
        return None
    layout = draft.topology[location].layout(weight.op.encoding, len(weight.shape))
    rounding = None if layout is None else layout.rounding
    columns = weight.shape[1]
    if rounding is not None and not (isinstance(columns, int) and rounding.fits(columns)):
        what = f"{node.op.name} over {columns} columns after {rounding}"
        raise NoKernel(what, str(node.dtype), str(weight.op.encoding), str(location))
    return rounding
