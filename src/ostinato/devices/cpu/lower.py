"""From a segment to a tape."""

from __future__ import annotations

from ostinato.device.segment import Segment
from ostinato.devices.cpu.lower_attention import ATTENTION, attend
from ostinato.devices.cpu.lower_products import PRODUCTS, product
from ostinato.devices.cpu.lower_rows import ROWS
from ostinato.devices.cpu.lowering import Lowering
from ostinato.devices.cpu.tape import Tape
from ostinato.ir.graph import Node
from ostinato.ir.ops.region import Region

REGIONS = {"product": product, "gated_product": product, "attend": attend}
"""Patterns that the device asks the planner for, and what lowers them."""


def lower(segment: Segment) -> Tape:
    """Kernel calls for every node, in order. Raises NoKernel."""
    low = Lowering(segment, {**ROWS, **PRODUCTS, **ATTENTION, Region: _region})
    for node in segment.nodes:
        low.node(node)
    return low.tape()


def _region(low: Lowering, node: Node) -> bool:
    """One of a pattern that the device didn't ask for runs by its definition."""
    assert isinstance(node.op, Region)
    lower = REGIONS.get(node.op.pattern)
    return lower is not None and lower(low, node)
