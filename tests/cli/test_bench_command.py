"""`ostinato bench --modes`: what is counted, what is compared, what is refused. Never how fast."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from commandline import TINY

from ostinato.device.contract import CaptureRefusal
from ostinato.devices.cpu.device import CpuDevice
from ostinato.devices.cpu.program import CpuBound
from ostinato.engine import bench as module
from ostinato.engine.pool import PlanMode

Cli = Callable[..., Any]
SMALL = ["bench", "--modes", "-m", TINY, "--tokens", "3", "--rounds", "2"]


def report_of(cli: Cli, *arguments: str, code: int = 0) -> dict[str, Any]:
    ran = cli(*SMALL, "--json", *arguments)
    assert ran.code == code, ran.err
    report: dict[str, Any] = json.loads(ran.out)
    return report


def test_json(cli: Cli) -> None:
    report = report_of(cli)
    assert set(report) == {
        "model", "device", "context", "prompt_tokens", "tokens", "rounds", "modes", "ratios", "mismatches",
        "equal_bits", "measured",
    }  # fmt: skip
    assert (report["tokens"], report["rounds"], report["context"]) == (3, 2, 64)
    assert (report["equal_bits"], report["mismatches"]) == (True, [])
    modes = {mode["mode"]: mode for mode in report["modes"]}
    assert list(modes) == ["D1", "D2", "D3"]
    assert [mode["name"] for mode in modes.values()] == ["replan", "held", "captured"]
    for mode in modes.values():
        assert set(mode) - {"mode", "name", "steps", "notes"} == set(report["measured"])
        ms = mode["ms_per_token"]
        assert 0 < ms["low"] <= ms["p25"] <= ms["median"] <= ms["p75"] <= ms["high"]
        assert mode["kernel_us_per_token"] > 0
        assert mode["host_us_per_token"] > 0
        assert mode["kernel_us_per_token"] <= ms["high"] * 1e3
    assert set(report["ratios"]) == {"D1/D2", "D2/D3"}
    for pair, ratio in report["ratios"].items():
        upper, lower = (modes[mode]["ms_per_token"]["median"] for mode in pair.split("/"))
        assert ratio["median"] == pytest.approx(upper / lower)
        assert ratio["low"] <= ratio["high"]


def test_plans_are_made_by_d1_alone(cli: Cli) -> None:
    modes = {mode["mode"]: mode for mode in report_of(cli)["modes"]}
    assert {name: mode["optimize_calls_per_token"] for name, mode in modes.items()} == {
        "D1": 1, "D2": 0, "D3": 0,
    }  # fmt: skip
    assert [mode["steps"] for mode in modes.values()] == [{"replanned": 6}, {"held": 6}, {"captured": 6}]
    assert [mode["notes"] for mode in modes.values()] == [[], [], []]


def test_weights_are_packed_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = []
    pack = CpuDevice.pack
    monkeypatch.setattr(
        CpuDevice,
        "pack",
        lambda self, recipe, tensors: packed.append(recipe) or pack(self, recipe, tensors),
    )
    report_of(cli)
    assert len(packed) == len(set(packed)) == 15  # of each layer q, k and v are one, gate and up are


def test_text(cli: Cli) -> None:
    ran = cli(*SMALL)
    assert (ran.code, ran.err) == (0, "")
    for fact in (
        "3 tokens × 2 rounds after a prompt of 16 tokens", "D1 replan", "D2 held", "D3 captured", "D1 ÷ D2: ",
        "D2 ÷ D3: ", "the same bits in all modes", "Bound.run or Captured.replay",
    ):  # fmt: skip
        assert fact in ran.out, fact
    assert "round 2 of 2" in cli(*SMALL, "-v").err


@pytest.mark.parametrize(
    ("mode", "name", "step"),
    [(PlanMode.HELD, "D2", 0), (PlanMode.HELD, "D2", 4), (PlanMode.CAPTURED, "D3", 1)],
)
def test_one_bit_that_differs_ends_the_run(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, mode: PlanMode, name: str, step: int
) -> None:
    """It comes in the second of three rounds."""
    rounds: list[int] = []
    run_round, run_step = module._Bench.round, module.run_step

    def counted(self: Any, tokens: Any, turn: int, **options: Any) -> Any:
        rounds.append(turn)
        return run_round(self, tokens, turn, **options)

    def wrong(
        model: Any, tokens: Any, cache: Any, context: Any, slot: Any, asked: PlanMode, **kw: Any
    ) -> Any:
        at = 0 if cache.length == 0 else cache.length - 16 + 1
        logits = run_step(model, tokens, cache, context, slot, asked, **kw)
        if (asked, at) == (mode, step) and rounds[-1:] == [2]:
            logits.view("uint8")[0] ^= 1
        return logits

    monkeypatch.setattr(module._Bench, "round", counted)
    monkeypatch.setattr(module, "run_step", wrong)
    ran = cli(*SMALL, "--rounds", "3", "--json")
    assert ran.code == 1
    report = json.loads(ran.out)
    assert (report["equal_bits"], report["rounds"]) == (False, 2)
    assert report["mismatches"] == [{"mode": name, "round": 2, "step": step}]
    where = f"step {step}" if step else "the prompt"
    assert f"the logits of {name} differ from D1's: round 2, {where}" in ran.err
    assert "the same bits" not in cli(*SMALL, "--rounds", "2").out


def test_a_refused_capture_is_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuBound, "freeze", lambda *_: CaptureRefusal("not today"))
    d3 = report_of(cli)["modes"][2]
    assert d3["steps"] == {"held": 6}
    assert d3["notes"] == ["not captured: not today"]
    assert "not captured: not today" in cli(*SMALL).out


def test_a_plan_that_is_not_really_held_is_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.decode import request

    true = request.structure_of

    def restless(*args: Any, **kw: Any) -> Any:
        structure = true(*args, **kw)
        return replace(structure, max_seq_len=structure.max_seq_len + 1)

    monkeypatch.setattr(request, "structure_of", restless)
    d2 = report_of(cli)["modes"][1]
    assert d2["notes"] == ["plan dropped 6 times: stale: max_seq_len"]


@pytest.mark.parametrize(("arguments", "text"), [
    (["bench", "--modes", "-m", TINY, "--rounds", "0"], "--rounds"),
    (["bench", "--modes", "-m", TINY, "--tokens", "0"], "--tokens"),
    (["bench", "--modes", "-m", TINY, "--tokens", "-3"], "--tokens"),
    (["bench", "--modes", "-m", TINY, "--context", "0"], "--context"),
    (["bench", "--modes", "-m", TINY, "--tokens", "48"], "context is 64, expected at least 65"),
])  # fmt: skip
def test_nonsense_is_wrong_usage(cli: Cli, arguments: list[str], text: str) -> None:
    ran = cli(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.err


def test_the_context_may_be_filled_to_its_end(cli: Cli) -> None:
    assert cli("bench", "--modes", "-m", TINY, "--tokens", "47", "--rounds", "1").code == 0
