"""Pattern "attend": [Rope of q], [Rope of k], the writes of k and v, and the attention over both slabs.

Operands: q `[rows, heads, k_dim]`, k `[rows, kv_heads, k_dim]`, v `[rows, kv_heads, v_dim]`, the K slab and
the V slab before the writes, then each rope table, length and mask once.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.ir.graph import Node
from ostinato.ir.location import Location
from ostinato.ir.ops.attention import Attention
from ostinato.ir.ops.nn import Rope
from ostinato.ir.ops.region import Region
from ostinato.ir.ops.slab import SlabWrite, WriteSlice, WriteSliceDevice
from ostinato.ir.shape import Length, NodeId, Operand
from ostinato.plan.regions.scene import Body, Match, Scene

ATTEND = "attend"


@dataclass(frozen=True, slots=True)
class AttendParts:
    """What is in an "attend" region, by the numbers of the region's operands (an `Operand` has them too).

    `q_rope` and `k_rope` are (cos, sin). `start` is that of the writes and of the attention, `count` how many
    rows are written, `length` what is attended.
    """

    attention: Attention
    q: int
    k: int
    v: int
    k_slab: int
    v_slab: int
    q_rope: tuple[int, int] | None
    k_rope: tuple[int, int] | None
    start: Length
    count: Length
    length: Length
    mask: int | None


def match_attend(scene: Scene, node: Node) -> Match | None:
    """The region of an Attention whose keys and values this step writes for it alone."""
    if not isinstance(node.op, Attention):
        return None
    location = scene.placement[node.id]
    q, k_state, v_state, *rest = node.inputs
    k_write, v_write = _write(scene, node, k_state, location), _write(scene, node, v_state, location)
    if k_write is None or v_write is None or not scene.may_hold(node.id, location):
        return None
    if not same_span(node, k_write, v_write):
        return None
    q_rope, k_rope = _rope(scene, q, location), _rope(scene, k_write.inputs[1], location)
    body = Body()
    q_at = body.operand(q_rope.inputs[0] if q_rope else q)
    k_at = body.operand(k_rope.inputs[0] if k_rope else k_write.inputs[1])
    v_at = body.operand(v_write.inputs[1])
    slabs = [body.operand(write.inputs[0]) for write in (k_write, v_write)]
    shared: dict[NodeId, int] = {}

    def once(operand: NodeId) -> int:
        if operand not in shared:
            shared[operand] = body.operand(operand)
        return shared[operand]

    if q_rope:
        q_at = body.step(q_rope.op, q_at, *map(once, q_rope.inputs[1:]))
    if k_rope:
        k_at = body.step(k_rope.op, k_at, *map(once, k_rope.inputs[1:]))
    written = [
        body.step(write.op, slab, rows, *map(once, write.inputs[2:]))
        for write, slab, rows in zip((k_write, v_write), slabs, (k_at, v_at), strict=True)
    ]
    body.step(node.op, q_at, *written, *map(once, rest))
    held = [node, k_write, v_write, *(rope for rope in (q_rope, k_rope) if rope)]
    return Match(node.id, body.region(ATTEND), tuple(body.inputs), frozenset(n.id for n in held))


def _write(scene: Scene, attention: Node, state: NodeId, location: Location) -> Node | None:
    """The write behind a slab operand, where the attention is all that sees what it leaves."""
    write = scene.nodes[state]
    alone = scene.only_reader(state) is attention
    return write if isinstance(write.op, SlabWrite) and alone and scene.may_hold(state, location) else None


def _rope(scene: Scene, rows: NodeId, location: Location) -> Node | None:
    rope = scene.nodes[rows]
    held = isinstance(rope.op, Rope) and scene.only_reader(rows) and scene.may_hold(rows, location)
    return rope if held else None


def same_span(attention: Node, k_write: Node, v_write: Node) -> bool:
    """Whether both writes put the same rows where the attention has its first row."""
    assert isinstance(attention.op, Attention)
    start = _value(attention.op.start, attention)
    return _span(k_write) == _span(v_write) and _span(k_write)[0] == start


def _span(write: Node) -> tuple[object, object]:
    """Start and count: symbols and numbers, or the nodes that hold them."""
    if isinstance(write.op, WriteSlice):
        return _value(write.op.start, write), _value(write.op.count, write)
    return _value(Operand(2), write), _value(Operand(3), write)


def _value(length: Length, node: Node) -> object:
    """A length as what it is; a node's id is told from a number."""
    return ("node", node.inputs[length.index]) if isinstance(length, Operand) else length


def attend_parts(region: Region) -> AttendParts:
    """What an "attend" region holds."""
    assert region.pattern == ATTEND
    attention, reads = region.body[-1]
    assert isinstance(attention, Attention)
    inner = {region.arity + j: instruction for j, instruction in enumerate(region.body)}

    def unroped(value: int) -> tuple[int, tuple[int, int] | None]:
        if value not in inner:
            return value, None
        _, (rows, cos, sin) = inner[value]
        return rows, (cos, sin)

    def outer(length: Length) -> Length:
        return Operand(reads[length.index]) if isinstance(length, Operand) else length

    (k_write, (k_slab, k, *k_span)), (_, (v_slab, v, *_)) = inner[reads[1]], inner[reads[2]]
    q, q_rope = unroped(reads[0])
    k, k_rope = unroped(k)
    if isinstance(k_write, WriteSliceDevice):
        count: Length = Operand(k_span[1])
    else:
        assert isinstance(k_write, WriteSlice)
        count = k_write.count
    return AttendParts(
        attention, q, k, v, k_slab, v_slab, q_rope, k_rope,
        start=outer(attention.start), count=count, length=outer(attention.length),
        mask=reads[-1] if attention.masked else None,
    )  # fmt: skip
