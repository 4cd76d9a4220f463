"""Products of one operand become one, found by structure, and only where nothing else sees their weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scratch import DIM, FFN, HEAD_DIM, HEADS, KV_HEADS, R1, Scratch, fused, labels, named, recipes

from decode.sessionkit import MODELS, tokens_of
from devices.fused import FusedDevice
from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.step import build_step
from ostinato.device.traits import WritePath
from ostinato.devices.reference import device as device_module
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import NoKernel, WeightLayoutConflict
from ostinato.ir import Location, Tensor, linear, swiglu
from ostinato.ir import encoding as enc
from ostinato.ir.ops.movement import Reshape, Slice
from ostinato.ir.ops.product import Linear
from ostinato.ir.recipe import PackRecipe, interleave
from ostinato.plan import joins
from ostinato.plan.optimized import OptimizedGraph
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry
from sabotage import goes_red

QKV = PackRecipe(("q", "k", "v"), "dense")
GATE_UP = PackRecipe(("gate", "up"), "dense", interleave(16))


def joined(*roots: Tensor, **wishes: object) -> OptimizedGraph:
    """Joins alone: no regions."""
    return fused(*roots, regions=(), **wishes)


def linears(plan: OptimizedGraph) -> list[list[str]]:
    return [labels(plan, n)[1:] for n in plan.nodes.values() if isinstance(n.op, Linear)]


def test_projections_become_one_product_and_keep_their_ids() -> None:
    s = Scratch()
    q, k, v = s.projections(s.x)
    plan = joined(s.attend(q, k, v))
    (product,) = (node for node in plan.nodes.values() if isinstance(node.op, Linear))
    assert product.inputs[0] == s.x.id
    assert product.shape == (s.x.shape[0], (HEADS + 2 * KV_HEADS) * HEAD_DIM)
    assert recipes(plan) == {QKV}
    parts = [plan.nodes[tensor.id] for tensor in (q, k, v)]
    assert [part.op for part in parts] == [Slice(1, 0, 32), Slice(1, 32, 48), Slice(1, 48, 64)]
    assert {part.inputs for part in parts} == {(product.id,)}
    assert named(plan).count("Linear") == 1


def test_gate_and_up_take_turns_by_the_row_group() -> None:
    s = Scratch()
    gate, up = (s.product(name, s.x, FFN) for name in ("gate", "up"))
    plan = joined(swiglu(gate, up))
    assert recipes(plan) == {GATE_UP}
    for at, half in enumerate((gate, up)):
        node = plan.nodes[half.id]
        assert node.op == Reshape(half.shape)
        part = plan.nodes[node.inputs[0]]
        assert part.op == Slice(2, at, at + 1)
        turns = plan.nodes[part.inputs[0]]
        assert turns.op == Reshape((half.shape[0], FFN // 16, 2, 16))
        assert isinstance(plan.nodes[turns.inputs[0]].op, Linear)


def test_halves_that_the_group_doesn_t_divide_follow_each_other() -> None:
    s = Scratch()
    gate, up = (s.product(name, s.x, 24) for name in ("gate", "up"))
    plan = joined(swiglu(gate, up))
    assert recipes(plan) == {PackRecipe(("gate", "up"), "dense")}
    assert [plan.nodes[t.id].op for t in (gate, up)] == [Slice(1, 0, 24), Slice(1, 24, 48)]


def test_biases_are_joined_like_their_weights() -> None:
    s = Scratch()
    plan = joined(s.block(bias=True))
    biases = {
        PackRecipe(("q.bias", "k.bias", "v.bias"), "dense"),
        PackRecipe(("gate.bias", "up.bias"), "dense", interleave(16)),
    }
    assert recipes(plan) >= {QKV, GATE_UP} | biases
    assert ["q + k + v", "q.bias + k.bias + v.bias"] in linears(plan)


def test_the_rounded_operand_is_one_operand() -> None:
    s = Scratch()
    plan = joined(s.block(), quantize={enc.F32: 32})
    assert recipes(plan) >= {QKV, GATE_UP}
    assert named(plan).count("QuantizeRows") == 4  # before q k v, o, gate up, down


def test_a_device_without_a_row_group_keeps_them_apart() -> None:
    s = Scratch()
    plan = joined(s.block(bias=True), row_group=None)
    assert len(linears(plan)) == 7
    assert {len(recipe.names) for recipe in recipes(plan)} == {1}


def test_a_part_may_be_read_by_others_too() -> None:
    s = Scratch()
    q, k, v = s.projections(s.x)
    a = s.attend(q, k, v)
    plan = joined(a, k.sum(), q)
    assert recipes(plan) == {QKV}


# What must stay apart

Case = Callable[[Scratch], Tensor]


def of_another_operand(s: Scratch) -> Tensor:
    q, k, _ = s.projections(s.x)
    return s.attend(q, k, s.product("v2", s.other, KV_HEADS * HEAD_DIM))


def of_another_encoding(s: Scratch) -> Tensor:
    q, k, _ = s.projections(s.x)
    return s.attend(q, k, s.product("v2", s.x, KV_HEADS * HEAD_DIM, encoding=enc.Q8_0))


def with_one_bias(s: Scratch) -> Tensor:
    q, k, _ = s.projections(s.x)
    return s.attend(q, k, s.product("v2", s.x, KV_HEADS * HEAD_DIM, bias=True))


def with_a_bias_that_is_computed(s: Scratch) -> Tensor:
    q, k, _ = s.projections(s.x, bias=True)
    bias = s.weight("v.scale", KV_HEADS * HEAD_DIM) * 2.0
    return s.attend(q, k, linear(s.x, s.weight("v2", KV_HEADS * HEAD_DIM, DIM), bias))


def with_a_weight_that_two_products_read(s: Scratch) -> Tensor:
    q, k, v = s.projections(s.x)
    again = linear(s.other, s.graph.tensor(q.node.inputs[1]))
    return s.attend(q, k, v) + again


def with_a_weight_under_two_consts(s: Scratch) -> Tensor:
    q, k, v = s.projections(s.x)
    return s.attend(q, k, v) + s.product("q", s.other, HEADS * HEAD_DIM)


def with_one_product_for_two(s: Scratch) -> Tensor:
    q = s.product("q", s.x, HEADS * HEAD_DIM)
    both = s.product("both", s.x, 2 * KV_HEADS * HEAD_DIM)
    k, v = both.slice(1, 0, 16), both.slice(1, 16, 32)
    return s.attend(q, k, v)


def with_a_value_that_is_no_product(s: Scratch) -> Tensor:
    q, k, v = s.projections(s.x)
    return s.attend(q, k, v * 2.0)


def over_slabs_that_nobody_writes(s: Scratch) -> Tensor:
    q, k, v = s.projections(s.x)
    return s.read(s.heads(q, HEADS), s.k_slab, s.v_slab) + k.concat([v], axis=1)


APART: list[Case] = [
    of_another_operand, of_another_encoding, with_one_bias, with_a_bias_that_is_computed,
    with_a_weight_that_two_products_read, with_a_weight_under_two_consts, with_one_product_for_two,
    with_a_value_that_is_no_product, over_slabs_that_nobody_writes,
]  # fmt: skip


@pytest.mark.parametrize("case", APART, ids=lambda case: case.__name__)
def test_products_stay_apart(case: Case) -> None:
    plan = joined(case(Scratch()))
    assert {len(recipe.names) for recipe in recipes(plan)} == {1}
    assert len(linears(plan)) > 1


def test_a_weight_that_comes_home_stays_what_it_is() -> None:
    s = Scratch()
    gate, up = (s.product(name, s.x, FFN) for name in ("gate", "up"))
    plan = joined(swiglu(gate, up), s.graph.tensor(up.node.inputs[1]))
    assert {len(recipe.names) for recipe in recipes(plan)} == {1}


def test_one_product_gates_itself() -> None:
    s = Scratch()
    gate = s.product("gate", s.x, FFN)
    plan = joined(swiglu(gate, gate))
    assert recipes(plan) == {PackRecipe(("gate",), "dense")}


def test_products_on_two_devices_stay_apart() -> None:
    s = Scratch()
    gate, up = (s.product(name, s.x, FFN) for name in ("gate", "up"))
    plan = joined(swiglu(gate, up), hints={up.node.inputs[1]: R1})
    assert {len(recipe.names) for recipe in recipes(plan)} == {1}


def test_without_the_look_at_encodings_two_are_packed_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch, joins, "can_pack_together", lambda *_: True,
        lambda: test_products_stay_apart(of_another_encoding),
    )  # fmt: skip


@pytest.mark.parametrize(
    "case", [with_a_weight_that_two_products_read, with_a_weight_under_two_consts], ids=lambda c: c.__name__
)
def test_without_the_count_of_readers_a_shared_weight_is_joined(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_red(monkeypatch, joins, "reads_alone", lambda *_: True, lambda: test_products_stay_apart(case))


# One recipe for a weight, whatever the plan


def test_every_plan_of_a_model_has_the_same_recipes() -> None:
    found = set()
    for path in WritePath:
        for bound in (1, 64):
            for apart in (False, True):  # V on another device than K and the weights
                step = build_step(MODELS["llama"](), 16, enc.F32, path)
                hints = {v: R1 for _, v in step.slabs} if apart else None
                roots = [step.graph.tensor(root) for root in step.roots]
                plan = fused(*roots, bound=bound, hints=hints, row_group=8)
                found.add(frozenset(recipes(plan)))
    (one,) = found
    assert sum(len(recipe.names) == 3 for recipe in one) == 2


def test_decode_and_prefill_share_the_packed_weights() -> None:
    devices = Registry()
    devices.register(FusedDevice(row_group=8))
    model, context = MODELS["phi"](), InferenceContext("reference", devices)
    cache = KvCache.allocate(model, context, 16)
    for tokens in (tokens_of(5), [1], tokens_of(3)):
        forward_with_kv_context(model, tokens, cache, context)
    store = model.weights.store_on(devices.device(Location("reference")))
    with pytest.raises(WeightLayoutConflict):
        store.get(PackRecipe(("0.q",), "dense"))


def test_a_device_that_can_t_slice_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Scratch()
    monkeypatch.setattr(device_module, "_OPS", ReferenceDevice().traits.ops - {Slice})
    with pytest.raises(NoKernel, match="Slice"):
        joined(s.attend(*s.projections(s.x)))


def test_the_step_binds_every_row_once() -> None:
    step = build_step(MODELS["llama"](), 16, enc.F32, WritePath.DEVICE_OFFSET)
    roots = [step.graph.tensor(root) for root in step.roots]
    plan = fused(*roots, row_group=8)
    names = [name for recipe in recipes(plan) for name in recipe.names]
    assert sorted(names) == sorted(step.weights)
