"""The same optimised graph on another device: the same nodes, packed and stored its way, the same results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from scratch import R0, R1, Scratch, fused, recipes, regions

from decode.sessionkit import MODELS, same_bits, tokens_of
from devices.fused import FusedDevice
from ostinato.decode.data import data_by_node, shape_data, token_data
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.step import OUT_ROWS, ROWS, StepGraph, build_step, slab_bindings, step_env
from ostinato.device.segment import Segment
from ostinato.device.topology import TopologySnapshot
from ostinato.device.traits import SlabLayout, Traits, WritePath
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import NoDevice, NoKernel
from ostinato.ir import ConstRole, Location
from ostinato.ir import encoding as enc
from ostinato.ir.ops.const import Const
from ostinato.ir.ops.movement import Copy
from ostinato.ir.ops.region import Region
from ostinato.ir.shape import NodeId
from ostinato.models.contract import Model
from ostinato.plan import retarget as retarget_module
from ostinato.plan.optimized import CopyStep, OptimizedGraph
from ostinato.plan.retarget import retarget
from ostinato.runtime.context import Bindings, InferenceContext
from ostinato.runtime.registry import Registry
from sabotage import goes_red

SOURCE, TARGET = Location("reference", 0), Location("reference", 7)


@pytest.fixture
def devices() -> Registry:
    """A device with every wish, and a plain one."""
    made = Registry()
    made.register(FusedDevice(row_group=8, quantize={enc.F32: 8}))
    made.register(ReferenceDevice(TARGET.ordinal))
    return made


def planned(model: Model, devices: Registry, path: WritePath, rows: int) -> tuple[StepGraph, OptimizedGraph]:
    step = build_step(model, 16, enc.F32, path)
    bounds = {ROWS: rows, OUT_ROWS: rows}
    return step, InferenceContext(SOURCE, devices).plan(step.graph, step.roots, bounds=bounds)


def run(
    plan: OptimizedGraph, step: StepGraph, model: Model, devices: Registry, place: Location, rows: int
) -> tuple[dict[NodeId, np.ndarray], list[np.ndarray]]:
    """Roots and slabs after two steps of `rows` tokens."""
    context = InferenceContext(place, devices)
    cache = KvCache.allocate(model, context, 16)
    compiled = context.compile(plan)
    for seed in (1, 2):
        ids = np.array(tokens_of(rows, seed), np.int64)
        data = {
            **data_by_node(step, token_data(step, model, ids, cache.length)),
            **shape_data(step, rows, range(rows)),
        }
        env = step_env(cache.length, rows, rows)
        bound = context.bind(plan, Bindings(model.weights, slab_bindings(step, cache), data), env)
        results = compiled.bind(bound.of_graph(plan.graph_id), env).run(env, plan.roots)
        cache.advance(rows)
    device = devices.device(place)
    slabs = [device.download(slab, (slab.nbytes // 4,)) for at in range(2) for slab in cache.slabs(at)]
    return results, slabs


@pytest.mark.parametrize("path", WritePath)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ["llama", "phi", "windowed", "masked"])
def test_another_reference_gives_the_same_bits(
    name: str, rows: int, path: WritePath, devices: Registry
) -> None:
    """Rounding is in the graph, row orders are in the recipes; neither device sums in another order."""
    model = MODELS[name]()
    step, plan = planned(model, devices, path, rows)
    moved = retarget(plan, SOURCE, TARGET, devices.snapshot())
    here = run(plan, step, model, devices, SOURCE, rows)
    there = run(moved, step, model, devices, TARGET, rows)
    for root in plan.roots:
        same_bits(there[0][root], here[0][root])
    for mine, theirs in zip(here[1], there[1], strict=True):
        same_bits(theirs, mine)


def test_only_stamps_and_packed_forms_change(devices: Registry) -> None:
    _, plan = planned(MODELS["llama"](), devices, WritePath.DEVICE_OFFSET, 3)
    moved = retarget(plan, SOURCE, TARGET, devices.snapshot())
    assert list(moved.nodes) == list(plan.nodes)
    assert set(moved.placement.values()) == {TARGET, Location("host")}
    for node, old in zip(moved.nodes.values(), plan.nodes.values(), strict=True):
        assert (node.inputs, node.shape, node.dtype) == (old.inputs, old.shape, old.dtype)
        if not isinstance(old.op, Const):
            assert node.op == old.op
    assert regions(moved) == regions(plan)
    assert recipes(moved) == recipes(plan)
    assert (moved.roots, moved.consts, moved.aliases, moved.sources) == (
        plan.roots, plan.consts, plan.aliases, plan.sources,
    )  # fmt: skip
    for a, b in zip(moved.steps, plan.steps, strict=True):
        assert type(a) is type(b)
        if isinstance(a, Segment) and isinstance(b, Segment):
            assert (a.memory, [n.id for n in a.nodes]) == (b.memory, [n.id for n in b.nodes])
            assert a.location == TARGET


def topology(**traits: Traits) -> TopologySnapshot:
    """r0, r1, … by ordinal."""
    places = {Location("reference", int(name[1:])): value for name, value in traits.items()}
    return TopologySnapshot(9, MappingProxyType(places))


def encodings(plan: OptimizedGraph) -> dict[str, enc.Encoding]:
    ops = [plan.nodes[i].op for i in plan.consts]
    return {op.label: op.encoding for op in ops if isinstance(op, Const) and op.role is not ConstRole.DATA}


@pytest.mark.parametrize("patterns", [(), ("attend",)], ids=["plain", "fused"])
def test_weights_and_slabs_take_the_target_s_forms(
    patterns: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = Scratch()
    plan = fused(s.block(encoding=enc.Q8_0), regions=patterns)
    plain = ReferenceDevice().traits
    packed = replace(next(iter(plain.weight_layouts.values())), name="tiles", stored=enc.Q4_0)
    other = replace(
        plain,
        weight_layouts=MappingProxyType({enc.Q8_0: packed}),
        kv_layouts=MappingProxyType({enc.F32: SlabLayout(k=enc.Q8_0, v=enc.F16)}),
    )

    def check() -> None:
        moved = retarget(plan, R0, TARGET, topology(r7=other))
        assert moved.generation == 9
        found = encodings(moved)
        assert (found["K"], found["V"]) == (enc.Q8_0, enc.F16)
        assert {found[name] for name in ("q + k + v", "o", "gate + up", "down")} == {enc.Q4_0}
        assert found["norm"] == enc.F32
        assert {recipe.layout for recipe in recipes(moved) if "norm" not in recipe.names[0]} == {"tiles"}
        slots = [slot for step in moved.steps if isinstance(step, Segment) for slot in step.inputs]
        assert {slot.label: slot.encoding for slot in slots if slot.label in found} == found

    goes_red(monkeypatch, retarget_module, "value_slabs", lambda nodes: set(), check)


def test_of_two_devices_one_is_replaced() -> None:
    s = Scratch()
    a = s.product("a", s.x, 32)
    b = s.product("b", a, 32)
    plan = fused(b, hints={b.node.inputs[1]: R1})
    traits = FusedDevice().traits
    moved = retarget(plan, R1, TARGET, topology(r0=traits, r7=traits))
    assert (moved.placement[a.id], moved.placement[b.id]) == (R0, TARGET)
    crossing = [step for step in moved.steps if isinstance(step, CopyStep)]
    assert [(step.origin, step.target) for step in crossing] == [(R0, TARGET), (TARGET, Location("host"))]
    ops: Mapping[NodeId, object] = {i: node.op for i, node in moved.nodes.items()}
    assert ops[crossing[0].node] == Copy(TARGET)
    back = retarget(moved, TARGET, R1, topology(r0=traits, r1=traits))
    assert {i: node.op for i, node in back.nodes.items()} == {i: node.op for i, node in plan.nodes.items()}


def test_what_the_target_can_t_do() -> None:
    s = Scratch()
    plan = fused(s.block())
    plain = ReferenceDevice().traits
    bare = plain.ops - {Region}
    for changes, named in (
        ({"ops": bare}, "attend region"),
        ({"ops": bare, "regions": frozenset({"product", "attend"})}, "gated_product region"),
        ({"kv_layouts": MappingProxyType({enc.F16: SlabLayout(enc.F16, enc.F16)})}, "for K on"),
        ({"weight_layouts": MappingProxyType({})}, "product region"),
        ({"vector_layouts": MappingProxyType({})}, "product region"),
    ):
        with pytest.raises(NoKernel, match=named):
            retarget(plan, R0, TARGET, topology(r7=replace(plain, **changes)))  # type: ignore[arg-type]
    native = replace(plain, ops=bare, regions=frozenset({"product", "attend", "gated_product"}))
    retarget(plan, R0, TARGET, topology(r7=native))
    with pytest.raises(NoDevice, match="reference:7"):
        retarget(plan, R0, TARGET, topology(r0=plain))


def test_a_read_that_must_come_before_a_write_still_does() -> None:
    s = Scratch()
    q, k, v = s.projections(s.x)
    before = s.k_slab.reshape(256).sum()
    plan = fused(s.attend(q, k, v), before)
    assert plan.order
    moved = retarget(plan, R0, TARGET, topology(r7=ReferenceDevice().traits))
    assert moved.order == plan.order
    (segment,) = (step for step in moved.steps if isinstance(step, Segment))
    at = {node.id: i for i, node in enumerate(segment.nodes)}
    assert all(at[first] < at[second] for first, second in plan.order)
