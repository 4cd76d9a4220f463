"""The plan report agrees with the plan itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from math import prod
from pathlib import Path

import numpy as np
import pytest

from devices.fused import FusedDevice
from ostinato.decode.forward import forward_with_kv_context_persistent
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.rebind import RefusalReason
from ostinato.decode.session import DecodeSession
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.step import OUT_ROWS, ROWS, build_step
from ostinato.decode.validity import PlanStructure
from ostinato.device.segment import Segment
from ostinato.device.traits import WritePath
from ostinato.devices.cpu.device import CpuDevice
from ostinato.devices.reference import ReferenceDevice
from ostinato.engine import plan_report as module
from ostinato.engine.opened import ENCODINGS
from ostinato.engine.plan_facts import inputs
from ostinato.engine.plan_report import explain, plan_report
from ostinato.formats.gguf import GgufFile
from ostinato.ir import encoding as enc
from ostinato.ir.location import Location
from ostinato.models.contract import Model
from ostinato.models.loader import load_model
from ostinato.plan.optimized import CopyStep
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry

FIXTURES = Path(__file__).parent.parent / "fixtures"
FIRST, SECOND = Location("reference", 0), Location("reference", 1)


@pytest.fixture
def model() -> Model:
    return load_model(FIXTURES / "tiny-llama-grouped.gguf")


@pytest.fixture
def one() -> Registry:
    return registry_of(0)


@pytest.fixture
def two() -> Registry:
    return registry_of(0, 1)


def registry_of(*ordinals: int) -> Registry:
    devices = Registry()
    for ordinal in ordinals:
        devices.register(ReferenceDevice(ordinal))
    return devices


def held(model: Model, devices: Registry, locations: list[Location]) -> tuple[DecodeSession, int]:
    """The held decode plan after two tokens, and the bytes uploaded for the second."""
    context = InferenceContext(FIRST, devices)
    cache = KvCache.allocate(model, context, 32, locations=locations)
    slot = DecodeSlot()
    forward_with_kv_context_persistent(model, [1], cache, context, slot)
    before = context.counters.total().bytes_uploaded
    forward_with_kv_context_persistent(model, [2], cache, context, slot)
    assert slot.session is not None
    return slot.session, context.counters.total().bytes_uploaded - before


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", ["tiny-llama-grouped", "tiny-llama-tied", "tiny-llama-window", "tiny-phi"])
def test_counts_are_those_of_the_session(name: str, split: bool, two: Registry) -> None:
    model = load_model(FIXTURES / f"{name}.gguf")
    locations = [FIRST, SECOND if split else FIRST]
    report = plan_report(model, locations, 32, two)
    session, uploaded = held(model, two, locations)
    plan = session.optimized
    assert (report.nodes, report.consts) == (len(plan.nodes), len(plan.consts))
    segments = [step for step in plan.steps if isinstance(step, Segment)]
    assert report.segments == tuple((str(s.location), len(s.nodes)) for s in segments)
    ops = Counter(node.op.name for segment in segments for node in segment.nodes)
    told: Counter[str] = Counter()
    where: Counter[str] = Counter()
    lists = {part.layers[0]: part.ops for part in report.schedule if part.layers and part.ops}
    for part in report.schedule:
        times = max(1, len(part.layers))
        rows = part.ops or lists[part.as_layer or 0]
        assert part.count == len(rows) == sum(part.locations.values())
        told.update({op: n * times for op, n in Counter(row.op for row in rows).items()})
        where.update({device: n * times for device, n in part.locations.items()})
    assert told == ops
    placed = Counter(str(segment.location) for segment in segments for _ in segment.nodes)
    assert where == placed
    copies = [step for step in plan.steps if isinstance(step, CopyStep)]
    assert sum(row.count for row in report.copies) == len(copies)
    assert report.rebound_bytes == uploaded
    assert session.max_seq_len == report.context == 32


def test_layers_fold_and_hold_what_a_block_writes(model: Model, one: Registry) -> None:
    report = plan_report(model, [FIRST, FIRST], 32, one)
    before, first, second, after = report.schedule
    assert (before.layers, first.layers, second.layers, after.layers) == ((), (0,), (1,), ())
    assert (second.as_layer, second.ops) == (0, ())
    kinds = Counter(row.op for row in first.ops)
    expected = {"RmsNorm": 2, "Linear": 7, "Attention": 1, "WriteSliceDevice": 2, "Rope": 2, "SwiGlu": 1}
    assert {op: kinds[op] for op in expected} == expected
    assert [row.op for row in after.ops] == ["RmsNorm", "Gather", "Linear", "ArgMax"]
    q = next(row for row in first.ops if row.op == "Linear")
    assert (q.operands, q.shape) == (("#1", "q"), "[rows, 32]")
    writes = [row for row in first.ops if row.op == "WriteSliceDevice"]
    assert [row.operands[0] for row in writes] == ["k slab", "v slab"]


def test_a_region_is_told_with_what_it_holds(model: Model) -> None:
    devices = Registry()
    devices.register(FusedDevice())
    report = plan_report(model, [FIRST, FIRST], 32, devices)
    assert report.regions == {"attend": 2, "product": 7, "gated_product": 2}
    regions = [row for row in report.schedule[1].ops if row.holds]
    assert [row.op for row in regions] == [
        "product region", "attend region", "product region", "gated_product region", "product region",
    ]  # fmt: skip
    assert regions[0].operands == ("in1", "attention_norm", "q + k + v")
    assert regions[0].holds == ("RmsNorm", "Linear")
    assert regions[1].operands[3:5] == ("k slab", "v slab")
    assert all("pattern" not in row.settings for row in regions)
    specs = model.family.weight_specs(model.config)
    assert sum(row.tensors for row in report.memory.weights) == len(specs)


def test_the_arena_is_that_of_the_plan(model: Model, one: Registry) -> None:
    memory = plan_report(model, [FIRST, FIRST], 32, one).memory
    session, _ = held(model, one, [FIRST, FIRST])
    (segment,) = (step for step in session.optimized.steps if isinstance(step, Segment))
    assert memory.arena_bytes == segment.memory.nbytes
    assert 0 < memory.arena_bytes < memory.inner_bytes


def test_layers_that_differ_are_not_folded(two: Registry) -> None:
    model = load_model(FIXTURES / "tiny-llama-grouped.gguf")
    parts = plan_report(model, [FIRST, SECOND], 32, two).schedule
    layers = [part for part in parts if part.layers]
    assert [part.layers for part in layers] == [(0,), (1,)]
    assert set(layers[0].locations) == {"reference:0"}
    assert "reference:1" in layers[1].locations


def test_a_split_shows_copies_between_devices_and_why(two: Registry, model: Model) -> None:
    report = plan_report(model, [FIRST, SECOND], 32, two)
    assert report.devices == ("reference:0", "reference:1")
    crossing = [row for row in report.copies if row.target != "host:0"]
    assert {(row.origin, row.target) for row in crossing} >= {("reference:0", "reference:1")}
    assert all(row.origin in row.reason and row.target in row.reason for row in crossing)
    assert report.capture_refusal is not None
    assert "copies from reference:" in report.capture_refusal
    assert {row.location for row in report.memory.weights} == {"reference:0", "reference:1"}


def test_one_device_copies_only_results(model: Model, one: Registry) -> None:
    report = plan_report(model, [FIRST, FIRST], 32, one)
    assert [row.value.split()[0] for row in report.copies] == ["logits", "argmax", "hidden"]
    assert {row.target for row in report.copies} == {"host:0"}
    assert report.copies[0].bytes == model.config.vocab_size * 4
    assert report.capture_refusal is None


def test_memory_of_a_quantised_model(one: Registry) -> None:
    path = FIXTURES / "tiny-llama-grouped.gguf"
    model = load_model(path, weights=ENCODINGS["q8_0"])
    memory = plan_report(model, [FIRST, FIRST], 32, one).memory
    with GgufFile.open(path) as file:  # float32 throughout
        stored = sum(prod(t.shape) * 4 for t in file.tensors.values())
    assert sum(row.stored_bytes for row in memory.weights) == stored
    assert sum(row.tensors for row in memory.weights) == len(model.weights)
    cache = KvCache.allocate(model, InferenceContext(FIRST, one), 32)
    assert memory.kv_bytes == cache.nbytes == 32 * memory.kv_bytes_per_position


def test_packed_bytes_are_those_of_the_store(model: Model, one: Registry) -> None:
    memory = plan_report(model, [FIRST, FIRST], 32, one).memory
    held(model, one, [FIRST, FIRST])
    store = model.weights.store_on(one.device(FIRST))
    assert sum(row.packed_bytes for row in memory.weights) == store.nbytes > 0


@pytest.fixture
def cpu() -> Registry:
    devices = Registry()
    devices.register(CpuDevice())
    return devices


@pytest.mark.parametrize(("weights", "kv"), [(None, enc.F16), ("q8_0", enc.F16), (None, enc.Q8_0)], ids=str)
@pytest.mark.parametrize("name", ["tiny-llama-grouped", "tiny-phi"])
def test_the_cpu_device_takes_what_the_report_says(
    name: str, weights: str | None, kv: enc.Encoding, cpu: Registry
) -> None:
    """Groups of rows that are filled up and joined, KV in blocks of positions."""
    model = load_model(FIXTURES / f"{name}.gguf", weights=weights and ENCODINGS[weights])
    place = Location("cpu")
    context = InferenceContext(place, cpu)
    report = plan_report(model, [place] * 2, 50, cpu, kv=kv)
    cache, slot = KvCache.allocate(model, context, 50, kv), DecodeSlot()
    forward_with_kv_context_persistent(model, [1], cache, context, slot)
    assert slot.session is not None
    (segment,) = (step for step in slot.session.optimized.steps if isinstance(step, Segment))
    memory, store = report.memory, model.weights.store_on(cpu.device(place))
    assert sum(row.packed_bytes for row in memory.weights) == store.nbytes
    assert sum(row.tensors for row in memory.weights) == len(model.weights)
    assert memory.kv_bytes == cache.nbytes == 64 * memory.kv_bytes_per_position
    assert memory.kv_dtype == str(kv).lower()
    assert memory.arena_bytes == segment.memory.nbytes
    assert report.capture_refusal is None
    assert set(report.regions) == {"attend", "product"} | ({"gated_product"} if name != "tiny-phi" else set())


def test_on_the_cpu_device_too_nothing_runs_and_no_weight_is_read(
    model: Model, monkeypatch: pytest.MonkeyPatch, cpu: Registry
) -> None:
    def touched(*_: object) -> None:
        raise AssertionError("a weight was packed, or a plan was run")

    monkeypatch.setattr(CpuDevice, "pack", touched)
    monkeypatch.setattr("ostinato.devices.cpu.program.CpuBound.run_owned", touched)
    plan_report(model, [Location("cpu")] * 2, 32, cpu)


def test_no_weight_is_read(model: Model, monkeypatch: pytest.MonkeyPatch, one: Registry) -> None:
    def touched(*_: object) -> None:
        raise AssertionError("a weight was packed")

    monkeypatch.setattr(ReferenceDevice, "pack", touched)
    monkeypatch.setattr("ostinato.devices.reference.program.ReferenceBound._run", touched)
    plan_report(model, [FIRST, FIRST], 32, one)


def test_a_report_leaves_no_weights_behind_for_the_device(model: Model, one: Registry) -> None:
    """The rooms it made hold zeros: whoever decodes afterwards packs anew."""
    plan_report(model, [FIRST, FIRST], 32, one)
    context = InferenceContext(FIRST, one)
    logits = [
        forward_with_kv_context_persistent(m, [3], KvCache.allocate(m, context, 32), context, DecodeSlot())
        for m in (model, load_model(model.path))
    ]
    assert np.array_equal(*logits)


def test_the_dead_mask_is_named_dead_and_a_live_one_is_not(model: Model, one: Registry) -> None:
    rows = {row.name: row for row in plan_report(model, [FIRST, FIRST], 32, one).inputs}
    assert {name for name, row in rows.items() if row.when == "never"} == {"mask"}
    assert {name for name, row in rows.items() if row.when == "once"} == {"count", "out_rows"}
    assert rows["mask"].bytes == 32 * 4
    step = build_step(model, 32, enc.F32, WritePath.DEVICE_OFFSET)
    bounds = {ROWS: 1, OUT_ROWS: 1}
    context = InferenceContext(FIRST, one)
    seen = {row.name: row.when for row in inputs(step, context.plan(step.graph, [step.mask], bounds=bounds))}
    assert seen["mask"] == "every token"
    assert seen["out_rows"] == "never"


def test_on_the_symbolic_path_the_position_has_no_bytes(model: Model) -> None:
    devices = Registry()
    devices.register(ReferenceDevice(0, WritePath.SYMBOLIC))
    report = plan_report(model, [FIRST, FIRST], 32, devices)
    assert "start" not in {row.name for row in report.inputs}
    assert report.symbols == ("cached_len", "count", "attended_len")
    assert report.capture_refusal is not None
    assert {row.field: row.value for row in report.key}["write_path"] == "symbolic"


def test_the_key_is_told_field_by_field(model: Model, one: Registry) -> None:
    report = plan_report(model, [FIRST, FIRST], 48, one)
    assert [row.field for row in report.key] == [field.name for field in fields(PlanStructure)]
    values = {row.field: row.value for row in report.key}
    assert values["max_seq_len"] == "48"
    assert values["n_layers"] == "2"
    assert values["locations"] == "reference:0; slabs: 4 × reference:0"
    assert values["cache_dtype"] == "F32"
    assert f"weight set {model.weights.id}" in values["shape_key"]
    assert str(model.config) in values["shape_key"]
    layer = model.config.kv[0]
    assert f"{layer.kv_heads} KV heads, K {layer.k_dim}" in values["kv_geometry"]


def test_every_refusal_has_words() -> None:
    assert set(module.REFUSALS) == set(RefusalReason)


def test_each_pass_is_timed_by_the_pipeline_itself(
    model: Model, monkeypatch: pytest.MonkeyPatch, one: Registry
) -> None:
    times = plan_report(model, [FIRST, FIRST], 32, one).milliseconds
    passes = {
        "prepare", "place", "make_resident", "insert_rounding", "join_products", "choose_layouts",
        "form_regions", "plan_memory", "schedule",
    }  # fmt: skip
    assert passes <= set(times)
    inner = sum(times[name] for name in times if name not in {"build the graph", "optimize", "compile"})
    assert 0 < inner <= times["optimize"]


def test_explain_needs_no_room_for_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.engine.memory.available_memory", lambda: 1)
    report = explain(str(FIXTURES / "tiny-llama-grouped.gguf"))
    assert report.context == 64
    assert explain(report.model, context=20).context == 20
