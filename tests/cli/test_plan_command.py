"""`ostinato plan show`: text with the facts in it, and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from commandline import FIXTURES, TINY

from devices.fused import FusedDevice
from ostinato.cli.plan import size, spans, told
from ostinato.decode.rebind import RefusalReason
from ostinato.decode.validity import PlanStructure
from ostinato.devices.reference import ReferenceDevice
from ostinato.engine.plan_report import plan_report
from ostinato.ir import encoding as enc
from ostinato.ir.location import Location
from ostinato.models.loader import load_model
from ostinato.runtime.registry import Registry

Cli = Callable[..., Any]
KEYS = {
    "model", "devices", "context", "nodes", "consts", "segments", "schedule", "regions", "copies", "memory",
    "inputs", "symbols", "key", "refusals", "milliseconds", "capture_refusal", "rebound_bytes",
}  # fmt: skip


def test_text_tells_the_plan(cli: Cli) -> None:
    ran = cli("plan", "show", "-m", TINY, "--device", "reference")
    assert (ran.code, ran.err) == (0, "")
    text = " ".join(ran.out.split())
    for fact in (
        "on reference:0, 64 positions", "layer 0: 24 ops (reference:0): 2 RmsNorm, 7 Linear",
        "layer 1: as layer 0, 24 ops each (reference:0)", "[rows, 32] float32",
        "the device asks for no regions",
        "logits [out_rows, 260] float32: reference:0 → host:0", "None between devices",
        "F32 → F32 on reference:0: 21 tensors, 35,232 numbers, 140.9 KB → 140.9 KB",
        "mask dead float32 [rows, 64], 256 bytes spared: no op reads it",
        "token_ids every token int64 [rows]",
        "out_rows bound once", "granted", "optimize", "make_resident", "compile",
    ):  # fmt: skip
        assert fact in text, fact
    for field in fields(PlanStructure):
        assert field.name in text
    for reason in RefusalReason:
        assert reason.value in text
    assert max(map(len, ran.out.splitlines())) <= 110


def test_json_has_the_same_facts(cli: Cli) -> None:
    ran = cli("plan", "show", "-m", TINY, "--device", "reference", "--context", "40", "--json")
    report = json.loads(ran.out)
    assert set(report) == KEYS
    assert report["context"] == 40
    assert [part["layers"] for part in report["schedule"]] == [[], [0], [1], []]
    assert set(report["schedule"][0]) == {"name", "layers", "as_layer", "count", "locations", "ops"}
    assert sum(part["count"] for part in report["schedule"]) == report["segments"][0][1]
    assert {row["name"]: row["when"] for row in report["inputs"]}["mask"] == "never"
    assert {row["field"]: row["value"] for row in report["key"]}["max_seq_len"] == "40"
    assert report["memory"]["kv_bytes"] == 40 * report["memory"]["kv_bytes_per_position"]
    assert report["capture_refusal"] is None
    assert report["rebound_bytes"] == sum(
        row["bytes"] for row in report["inputs"] if row["when"] == "every token"
    )


def test_the_kv_type_is_named(cli: Cli) -> None:
    for kv in ("f32", "q8_0"):
        ran = cli("plan", "show", "-m", TINY, "--device", "reference", "--kv-dtype", kv)
        assert f"KV cache, {kv}: " in ran.out
        assert f"cache_dtype {kv.upper()}" in " ".join(ran.out.split())
    assert "f16" in cli("plan", "show", "-m", TINY, "--kv-dtype", "f8").err


def test_a_folder_of_safetensors(cli: Cli) -> None:
    ran = cli("plan", "show", "-m", str(FIXTURES / "tiny-phi"))
    assert ran.code == 0
    assert "layer 1: as layer 0" in ran.out
    assert "phi, weight set" in ran.out


def test_a_split_over_two_devices_is_told() -> None:
    devices = Registry()
    places = [Location("reference", ordinal) for ordinal in (0, 1)]
    for place in places:
        devices.register(ReferenceDevice(place.ordinal))
    text = "\n".join(told(plan_report(load_model(TINY), places, 64, devices)))
    assert "on reference:0, reference:1, 64 positions" in text
    assert "segments, cut where the device changes" in text
    assert "reference:0 → reference:1" in text
    assert "made or stored on reference:0, read on reference:1" in text
    assert "None between devices" not in text
    assert "refused: " in text


def test_regions_and_what_they_hold_are_told() -> None:
    devices = Registry()
    devices.register(FusedDevice(quantize={enc.F32: 32}))
    report = plan_report(load_model(TINY), [Location("reference")] * 2, 64, devices)
    assert json.loads(json.dumps(report.as_dict()))["regions"] == report.regions
    text = "\n".join(told(report))
    for fact in (
        "11 regions, each what one kernel does (2 attend, 2 gated_product, 7 product)",
        "in1, attention_norm, q + k + v", "holds: RmsNorm, QuantizeRows, Linear\n",
        "holds: Rope, Rope, WriteSliceDevice, WriteSliceDevice, Attention\n", "k slab, v slab",
        "ffn_norm, gate + up", "holds: QuantizeRows, Linear, Add\n", "eps 1e-05, block 32",
    ):  # fmt: skip
        assert fact in text, (fact, text)


def test_alike_layers_in_a_row_are_told_as_a_range() -> None:
    assert spans((1,)) == "1"
    assert spans((0, 1, 2, 5, 7, 8)) == "0-2, 5, 7-8"
    assert [size(n) for n in (1, 999, 1000, 2_500_000, 10**9)] == [
        "1 bytes", "999 bytes", "1.0 KB", "2.5 MB", "1.0 GB",
    ]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code"), [
    (["plan", "show", "--context", "0"], 2),
    (["plan", "show", "-m", TINY, "--device", "a b"], 2),
    (["plan", "show", "-m", TINY, "--device", "reference:7"], 1),
    (["plan", "show", "-m", "/nowhere/x.gguf"], 1),
    (["plan", "nosuch"], 2),
])  # fmt: skip
def test_what_cant_be_shown(cli: Cli, arguments: list[str], code: int) -> None:
    ran = cli(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert "Traceback" not in ran.err
