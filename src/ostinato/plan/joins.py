"""Pass: products of one operand that belong together become one product over one packed weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ostinato.ir.graph import Node
from ostinato.ir.location import HOST, Location
from ostinato.ir.ops.attention import Attention
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.ops.movement import Clone, Copy, Reshape, Slice, Squeeze, Unsqueeze
from ostinato.ir.ops.nn import Rope, SwiGlu
from ostinato.ir.ops.product import Linear
from ostinato.ir.ops.slab import SlabWrite
from ostinato.ir.recipe import PackRecipe, interleave
from ostinato.ir.shape import NodeId
from ostinato.plan.draft import Draft
from ostinato.plan.placement import check_kernel, insert

Reads = Counter[tuple[str, Location]]

_ON_THE_WAY = (Reshape, Slice, Squeeze, Unsqueeze, Rope, Copy, Clone)
"""Between a projection and its attention; Copies, so that where a cache lies changes no recipe."""


def join_products(draft: Draft) -> None:
    """Join the projections of one attention, and those of one SwiGlu, on devices whose traits say how many
    rows a packed product takes at a time. Each old product's id becomes its part of the joined result.

    Found by structure alone, so every plan of a model joins the same weights. Raises NoKernel.
    """
    groups = {place: draft.topology[place].row_group for place in set(draft.placement.values()) - {HOST}}
    if not any(groups.values()):
        return
    reads = weight_reads(draft)
    for node in draft.topological():
        group = groups.get(draft.placement[node.id])
        if group is None:
            continue
        if isinstance(node.op, Attention):
            _join(draft, projections(draft, node), reads, None)
        elif isinstance(node.op, SwiGlu):
            _join(draft, [draft.nodes[i] for i in node.inputs], reads, group)
    draft.sweep()


def projections(draft: Draft, attention: Node) -> list[Node]:
    """What an attention's q, k and v were projected by; nothing where K or V is no written slab."""
    q, *slabs = attention.inputs[:3]
    found = [_origin(draft, q)]
    for slab in slabs:
        write = _origin(draft, slab)
        if not isinstance(write.op, SlabWrite):
            return []
        found.append(_origin(draft, write.inputs[1]))
    return found


def _origin(draft: Draft, node: NodeId) -> Node:
    while isinstance(draft.nodes[node].op, _ON_THE_WAY):
        node = draft.nodes[node].inputs[0]
    return draft.nodes[node]


def weight_reads(draft: Draft) -> Reads:
    """How often each weight is read on each device, by name: two Consts may name one weight."""
    reads: Reads = Counter()
    for node in draft.nodes.values():
        for i in node.inputs:
            op = draft.nodes[i].op
            if isinstance(op, Const) and op.role is ConstRole.WEIGHT:
                reads[op.label, draft.placement[i]] += 1
    return reads


def _join(draft: Draft, products: Sequence[Node], reads: Reads, group: int | None) -> None:
    """One product for all of them where `can_join`. Given a `group`, their rows take turns by it, where it
    divides them; else each comes whole."""
    if not can_join(draft, products, reads):
        return
    width = group if group and _extent(products[0]) % group == 0 else None
    location = draft.placement[products[0].id]
    columns = [[draft.nodes[product.inputs[at]] for product in products]
               for at in range(1, len(products[0].inputs))]  # fmt: skip
    weights = [_joined_weight(draft, parts, location, width) for parts in columns]
    joined = insert(draft, Linear(), [products[0].inputs[0], *weights], location)  # [rows, all]
    if width is None:
        start = 0
        for product in products:
            stop = start + _extent(product)
            draft.replace(product.id, Slice(1, start, stop), [joined])  # [rows, own]
            check_kernel(draft, draft.nodes[product.id], draft.topology[location], location)
            start = stop
        return
    rows, own, parts = products[0].shape[0], _extent(products[0]), len(products)
    turns = insert(draft, Reshape((rows, own // width, parts, width)), [joined], location)
    for at, product in enumerate(products):
        part = insert(draft, Slice(2, at, at + 1), [turns], location)  # [rows, own / width, 1, width]
        draft.replace(product.id, Reshape((rows, own)), [part])  # [rows, own]


def can_join(draft: Draft, products: Sequence[Node], reads: Reads) -> bool:
    """Different products of one operand, on one device, with weights that can be packed as one."""
    several = len({product.id for product in products}) == len(products) > 1
    if not several or not all(isinstance(product.op, Linear) for product in products):
        return False
    if len({(p.inputs[0], draft.placement[p.id], len(p.inputs)) for p in products}) > 1:
        return False
    return all(
        can_pack_together(draft, [draft.nodes[product.inputs[at]] for product in products])
        and all(reads_alone(draft, draft.nodes[product.inputs[at]], reads) for product in products)
        for at in range(1, len(products[0].inputs))
    )


def can_pack_together(draft: Draft, weights: Sequence[Node]) -> bool:
    """Weights of one encoding on one device, with rows of one width, none of them packed otherwise."""
    for weight in weights:
        op = weight.op
        if not isinstance(op, Const) or op.role is not ConstRole.WEIGHT or op.recipe is not None:
            return False
    alike = {(w.op.encoding, w.shape[1:], draft.placement[w.id]) for w in weights if isinstance(w.op, Const)}
    return len(alike) == 1


def reads_alone(draft: Draft, weight: Node, reads: Reads) -> bool:
    """Whether a product is the only reader of its weight: what another reads must stay as it is."""
    assert isinstance(weight.op, Const)
    return reads[weight.op.label, draft.placement[weight.id]] == 1


def _joined_weight(draft: Draft, parts: Sequence[Node], location: Location, width: int | None) -> NodeId:
    """The Const of all parts' rows; `choose_layouts` gives its recipe the layout."""
    ops = [part.op for part in parts if isinstance(part.op, Const)]
    names = tuple(op.label for op in ops)
    shape = (sum(_extent(part, 0) for part in parts), *parts[0].shape[1:])
    recipe = PackRecipe(names, "", None if width is None else interleave(width))
    const = Const(" + ".join(names), ConstRole.WEIGHT, shape, ops[0].dtype, ops[0].encoding, recipe)
    node = draft.add(const, [])
    draft.placement[node] = location
    return node


def _extent(node: Node, axis: int = -1) -> int:
    """An extent that a weight's shape gives."""
    extent = node.shape[axis]
    assert isinstance(extent, int), "weights have numbers for shapes"
    return extent
