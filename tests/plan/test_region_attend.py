"""An attention with its writes and ropes as one region, and the attentions that stay open."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scratch import (
    CAPACITY,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    ROWS,
    Scratch,
    fused,
    held,
    labels,
    named,
    node_of,
    regions,
)  # fmt: skip

from ostinato.ir import ConstRole, DType, SymId, Tensor
from ostinato.ir.ops.attention import Attention
from ostinato.ir.ops.slab import SlabWrite
from ostinato.ir.shape import Operand
from ostinato.plan.draft import Draft
from ostinato.plan.regions import attend as attend_module
from ostinato.plan.regions.attend import attend_parts
from ostinato.plan.regions.scene import Scene
from sabotage import goes_red, nothing

ATTEND = "attend"


@pytest.mark.parametrize("symbolic", [False, True])
def test_an_attention_holds_its_writes_and_ropes(symbolic: bool) -> None:
    s = Scratch(symbolic=symbolic)
    q, k, v = (
        s.graph.const(n, ConstRole.DATA, (ROWS, h, HEAD_DIM)) for n, h in (("q", HEADS), ("k", 2), ("v", 2))
    )
    a = s.read(s.turn(q), s.write(s.k_slab, s.turn(k)), s.write(s.v_slab, v))
    plan = fused(a)
    (region,) = regions(plan)
    write = "WriteSlice" if symbolic else "WriteSliceDevice"
    assert (region.pattern, held(region)) == (ATTEND, ["Rope", "Rope", write, write, "Attention"])
    assert region.writes == (3, 4)
    lengths = [] if symbolic else ["start", "count", f"%{a.node.inputs[4]}"]
    assert labels(plan, node_of(plan, region)) == ["q", "k", "v", "K", "V", "cos", "sin", *lengths]
    parts = attend_parts(region)
    assert (parts.q, parts.k, parts.v, parts.k_slab, parts.v_slab) == (0, 1, 2, 3, 4)
    assert parts.q_rope == parts.k_rope == (5, 6)
    spans = (parts.start, parts.count, parts.length)
    symbols = (SymId("start"), SymId("count"), SymId("length"))
    assert spans == (symbols if symbolic else (Operand(7), Operand(8), Operand(9)))
    assert parts.mask is None
    assert not any(isinstance(node.op, SlabWrite) for node in plan.nodes.values())


def test_without_ropes_and_with_a_mask() -> None:
    s = Scratch()
    q, k, v = (s.graph.const(n, ConstRole.DATA, (ROWS, 2, HEAD_DIM)) for n in "qkv")
    mask = s.graph.const("mask", ConstRole.DATA, (ROWS, CAPACITY))
    at = Attention(Operand(3), Operand(4), 0.5, 5, True)
    end = s.start + s.count
    a = q.apply(at, s.write(s.k_slab, k), s.write(s.v_slab, v), s.start, end, mask)
    plan = fused(a)
    (region,) = regions(plan)
    assert held(region) == ["WriteSliceDevice", "WriteSliceDevice", "Attention"]
    parts = attend_parts(region)
    assert (parts.q_rope, parts.k_rope, parts.attention) == (None, None, at)
    operands = labels(plan, node_of(plan, region))
    assert parts.mask is not None
    assert operands[parts.mask] == "mask"
    assert isinstance(parts.length, Operand)
    assert operands[parts.length.index] == f"%{end.id}"


def test_each_rope_may_have_tables_of_its_own() -> None:
    s = Scratch()
    q, k, v = (s.graph.const(n, ConstRole.DATA, (ROWS, 2, HEAD_DIM)) for n in "qkv")
    cos2 = s.graph.const("cos2", ConstRole.DATA, (ROWS, 4))
    turned = s.graph.tensor(q.id).apply(s.turn(k).node.op, cos2, s.sin)
    plan = fused(s.read(turned, s.write(s.k_slab, s.turn(k)), s.write(s.v_slab, v)))
    (region,) = regions(plan)
    parts, operands = attend_parts(region), labels(plan, node_of(plan, region))
    assert parts.q_rope is not None
    assert parts.k_rope is not None
    assert [operands[i] for i in parts.q_rope] == ["cos2", "sin"]
    assert [operands[i] for i in parts.k_rope] == ["cos", "sin"]


def parts_of(s: Scratch) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = s.projections(s.x)
    return s.turn(s.heads(q, HEADS)), s.turn(s.heads(k, KV_HEADS)), s.heads(v, KV_HEADS)


def writes_at_another_place(s: Scratch) -> list[Tensor]:
    q, k, v = parts_of(s)
    elsewhere = s.graph.const("elsewhere", ConstRole.DATA, (), DType.I64)
    return [s.read(q, s.write(s.k_slab, k), s.write(s.v_slab, v, start=elsewhere))]


def writes_that_both_stand_elsewhere(s: Scratch) -> list[Tensor]:
    q, k, v = parts_of(s)
    at = s.graph.const("elsewhere", ConstRole.DATA, (), DType.I64)
    return [s.read(q, s.write(s.k_slab, k, start=at), s.write(s.v_slab, v, start=at))]


def a_write_that_another_attention_sees(s: Scratch) -> list[Tensor]:
    q, k, v = parts_of(s)
    written = s.write(s.k_slab, k), s.write(s.v_slab, v)
    return [s.read(q, *written), s.read(q, *written)]


def an_old_state_that_somebody_still_reads(s: Scratch) -> list[Tensor]:
    """The reader runs before the write: an order that a region would hide."""
    q, k, v = parts_of(s)
    before = s.k_slab.reshape(1, KV_HEADS * CAPACITY * HEAD_DIM).sum()
    return [s.read(q, s.write(s.k_slab, k), s.write(s.v_slab, v)), before]


def slabs_that_this_step_doesn_t_write(s: Scratch) -> list[Tensor]:
    return [s.read(parts_of(s)[0], s.k_slab, s.v_slab)]


OPEN = [
    writes_at_another_place, writes_that_both_stand_elsewhere, a_write_that_another_attention_sees,
    an_old_state_that_somebody_still_reads, slabs_that_this_step_doesn_t_write,
]  # fmt: skip


@pytest.mark.parametrize("case", OPEN, ids=lambda case: case.__name__)
def test_attentions_that_stay_open(case: Callable[[Scratch], list[Tensor]]) -> None:
    plan = fused(*case(Scratch()), regions=(ATTEND,))
    assert regions(plan) == []
    writes = sum(isinstance(node.op, SlabWrite) for node in plan.nodes.values())
    assert writes == (0 if case is slabs_that_this_step_doesn_t_write else 2)


def test_without_the_look_at_positions_another_write_is_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    for case in (writes_at_another_place, writes_that_both_stand_elsewhere):
        goes_red(
            monkeypatch, attend_module, "same_span", lambda *_: True,
            lambda case=case: test_attentions_that_stay_open(case),
        )  # fmt: skip


def test_without_the_look_at_order_a_reader_comes_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch, Scene, "is_pinned", lambda *_: False,
        lambda: test_attentions_that_stay_open(an_old_state_that_somebody_still_reads),
        expect=(AssertionError, KeyError),
    )  # fmt: skip


def test_a_write_that_stays_beside_its_region_would_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch, Draft, "remove", nothing, lambda: test_an_attention_holds_its_writes_and_ropes(False)
    )  # fmt: skip


def test_one_rope_for_two_attentions_stays_outside() -> None:
    s = Scratch()
    q, k, v = parts_of(s)
    other_k, other_v = (s.graph.const(f"{n}2", ConstRole.SLAB, s.k_slab.shape) for n in "KV")
    first = s.read(q, s.write(s.k_slab, k), s.write(s.v_slab, v))
    second = s.read(q, s.write(other_k, k), s.write(other_v, v))
    plan = fused(first, second, regions=(ATTEND,))
    assert [held(region) for region in regions(plan)] == [["WriteSliceDevice"] * 2 + ["Attention"]] * 2
    assert named(plan).count("Rope") == 2
