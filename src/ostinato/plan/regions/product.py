"""Patterns: a product with what stands around it.

"product": [RmsNorm | LayerNorm] → [Rounding] → Linear → [GeluTanh | Silu] → [Add of a residual].
"gated_product": the same beginnings → Linear over interleaved gate and up rows → SwiGlu of the two.

Operands: x, the norm's weights, the weight, the bias, the residual, as far as there are any. Norm and
rounding are repeated in each region that needs them; everything else is swallowed only where nobody else
reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.ir.graph import Node
from ostinato.ir.location import Location
from ostinato.ir.op import Op
from ostinato.ir.ops.const import Const
from ostinato.ir.ops.elementwise import Add
from ostinato.ir.ops.movement import Reshape, Slice
from ostinato.ir.ops.nn import GeluTanh, LayerNorm, RmsNorm, Silu, SwiGlu
from ostinato.ir.ops.product import Linear
from ostinato.ir.ops.quantize import Rounding
from ostinato.ir.ops.region import Region
from ostinato.ir.shape import NodeId
from ostinato.plan.regions.scene import Body, Match, Scene

PRODUCT, GATED_PRODUCT = "product", "gated_product"


@dataclass(frozen=True, slots=True)
class ProductParts:
    """What is in a "product" or "gated_product" region, by the numbers of the region's operands.

    `gated` is the width of the interleaving in a gated one, whose activation is SwiGlu; `activation` is that
    of the other.
    """

    norm: RmsNorm | LayerNorm | None
    norm_operands: tuple[int, ...]
    rounding: Rounding | None
    weight: int
    bias: int | None
    activation: Op | None
    gated: int | None
    residual: int | None
    x: int = 0


def match_product(scene: Scene, node: Node) -> Match | None:
    """The region of a Linear; the last product of a sum takes the sum."""
    if not isinstance(node.op, Linear):
        return None
    location = scene.placement[node.id]
    body = Body()
    value = _linear(scene, node, body)
    if value is None:
        return None
    held = [node.id]
    activation = scene.only_reader(node.id)
    if activation and isinstance(activation.op, GeluTanh | Silu) and scene.may_hold(activation.id, location):
        value = body.step(activation.op, value)
        held.append(activation.id)
    total = scene.only_reader(held[-1])
    if total and isinstance(total.op, Add) and scene.may_hold(total.id, location):
        left, right = total.inputs
        if scene.nodes[left].shape == scene.nodes[right].shape:
            residual = body.operand(right if left == held[-1] else left)
            reads = (value, residual) if left == held[-1] else (residual, value)
            body.step(total.op, *reads)
            held.append(total.id)
    return Match(held[-1], body.region(PRODUCT), tuple(body.inputs), frozenset(held))


def match_gated_product(scene: Scene, node: Node) -> Match | None:
    """The region of a SwiGlu over the two halves of one joined product."""
    if not isinstance(node.op, SwiGlu):
        return None
    halves = [_half(scene, i) for i in node.inputs]
    gate, up = halves
    if gate is None or up is None or gate.turns.id != up.turns.id:
        return None
    turns, location = gate.turns, scene.placement[node.id]
    linear = scene.nodes[turns.inputs[0]]
    views = [turns, gate.part, gate.half, up.part, up.half]
    seen = [*views, linear]
    if not all(scene.may_hold(n.id, location) for n in (*seen, node)):
        return None
    # two parts read the turns; everything else is read once
    if len(scene.readers[turns.id]) != 2 or not all(scene.only_reader(n.id) for n in seen if n is not turns):
        return None
    width = _interleaved(scene, linear)
    if width is None or turns.shape[2:] != (2, width) or [_slot(gate.part), _slot(up.part)] != [0, 1]:
        return None
    body = Body()
    value = _linear(scene, linear, body)
    if value is None:
        return None
    whole = body.step(turns.op, value)
    results = [body.step(half.half.op, body.step(half.part.op, whole)) for half in (gate, up)]
    body.step(node.op, *results)
    held = frozenset([node.id, *(n.id for n in seen)])
    return Match(node.id, body.region(GATED_PRODUCT), tuple(body.inputs), held)


def _linear(scene: Scene, node: Node, body: Body) -> int | None:
    """A Linear and what stands before it; None where its weights are no weights."""
    location = scene.placement[node.id]
    x, *weights = node.inputs
    if not scene.may_hold(node.id, location) or not all(map(scene.is_weight, weights)):
        return None
    rounding = _before(scene, x, location, Rounding)
    x = rounding.inputs[0] if rounding else x
    norm = _before(scene, x, location, RmsNorm, LayerNorm)
    if norm and not all(map(scene.is_weight, norm.inputs[1:])):
        norm = None
    value = body.operand(norm.inputs[0] if norm else x)
    if norm:
        value = body.step(norm.op, value, *(body.operand(i) for i in norm.inputs[1:]))
    if rounding:
        value = body.step(rounding.op, value)
    return body.step(node.op, value, *(body.operand(i) for i in weights))


def _before(scene: Scene, node: NodeId, location: Location, *kinds: type[Op]) -> Node | None:
    """The node, where it is of one of these kinds and may be repeated in a region."""
    found = scene.nodes[node]
    return found if isinstance(found.op, kinds) and scene.may_hold(node, location) else None


@dataclass(frozen=True)
class _Half:
    """One operand of a SwiGlu, back to the joined product seen in turns: `[rows, n, 2, width]`."""

    turns: Node
    part: Node
    half: Node


def _half(scene: Scene, node: NodeId) -> _Half | None:
    half = scene.nodes[node]
    if not isinstance(half.op, Reshape):
        return None
    part = scene.nodes[half.inputs[0]]
    if not isinstance(part.op, Slice):
        return None
    turns = scene.nodes[part.inputs[0]]
    if not isinstance(turns.op, Reshape) or len(turns.shape) != 4:
        return None
    return _Half(turns, part, half) if isinstance(scene.nodes[turns.inputs[0]].op, Linear) else None


def _slot(part: Node) -> int | None:
    """Which of the two a Slice takes."""
    assert isinstance(part.op, Slice)
    whole = part.op.axis % len(part.shape) == 2 and part.op.stop == part.op.start + 1
    return part.op.start if whole else None


def _interleaved(scene: Scene, linear: Node) -> int | None:
    op = scene.nodes[linear.inputs[1]].op
    return op.recipe.interleaved if isinstance(op, Const) and op.recipe else None


def product_parts(region: Region) -> ProductParts:
    """What a "product" or "gated_product" region holds."""
    assert region.pattern in (PRODUCT, GATED_PRODUCT)
    norm, rounding, activation, gated, residual = None, None, None, None, None
    norm_operands: tuple[int, ...] = ()
    weight, bias = -1, None
    for op, reads in region.body:
        if isinstance(op, RmsNorm | LayerNorm):
            norm, norm_operands = op, reads[1:]
        elif isinstance(op, Rounding):
            rounding = op
        elif isinstance(op, Linear):
            weight = reads[1]
            bias = reads[2] if len(reads) > 2 else None
        elif isinstance(op, GeluTanh | Silu):
            activation = op
        elif isinstance(op, Add):
            (residual,) = (read for read in reads if read < region.arity)
        elif isinstance(op, Reshape) and len(op.shape) == 4:
            assert isinstance(op.shape[3], int)
            gated = op.shape[3]
    return ProductParts(norm, norm_operands, rounding, weight, bias, activation, gated, residual)
