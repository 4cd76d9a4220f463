"""`ostinato bench`: what it reports and what it refuses. Never how fast."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from commandline import TINY

from ostinato.devices.cpu.bandwidth import ReadBandwidth
from ostinato.devices.cpu.device import CpuDevice

Cli = Callable[..., Any]
SMALL = [
    "bench",
    "-m",
    TINY,
    "--decode",
    "3",
    "--depth",
    "0",
    "--depth",
    "9",
    "--prefill",
    "8",
    "--rounds",
    "2",
]


@pytest.fixture(autouse=True)
def _small_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuDevice, "read_bandwidth", lambda self: ReadBandwidth(self.engine, 1 << 20))


def report_of(cli: Cli, *arguments: str) -> dict[str, Any]:
    ran = cli(*SMALL, "--json", *arguments)
    assert ran.code == 0, ran.err
    report: dict[str, Any] = json.loads(ran.out)
    return report


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_json(cli: Cli, device: str) -> None:
    report = report_of(cli, "--device", device, "--threads", "2")
    assert set(report) == {
        "model", "device", "kv_dtype", "context", "threads", "rounds", "weight_bytes", "rates", "bandwidth",
        "memory", "cold", "faults", "measured",
    }  # fmt: skip
    assert (report["device"], report["threads"], report["rounds"]) == (f"{device}:0", 2, 2)
    assert report["context"] == 13, "as much as the deepest work needs"
    assert [rate["work"] for rate in report["rates"]] == [
        {"kind": "decode", "tokens": 3, "depth": 0, "rows": 1, "name": "decode 3 at 0"},
        {"kind": "decode", "tokens": 3, "depth": 9, "rows": 1, "name": "decode 3 at 9"},
        {"kind": "prefill", "tokens": 8, "depth": 0, "rows": 1, "name": "prefill 8"},
    ]
    for rate in report["rates"]:
        spread = rate["tokens_per_second"]
        assert 0 < spread["low"] <= spread["p25"] <= spread["median"] <= spread["p75"] <= spread["high"]
        assert rate["host_us_per_token"] > 0
        decode = rate["work"]["kind"] == "decode"
        assert (rate["bytes_per_token"] is not None) == decode
        assert (rate["share"] is not None) == (decode and device == "cpu")
        assert rate["stages"] == []
    assert report["cold"] == []
    if device == "cpu":
        assert set(report["bandwidth"]) == {"best", "samples"}
        assert len(report["bandwidth"]["samples"]) == 2 * 3
    else:
        assert report["bandwidth"] is None


def test_profile(cli: Cli) -> None:
    for rate in report_of(cli, "--profile")["rates"]:
        assert set(rate["stages"][0]) == {"kernel", "weight", "us_per_token", "share"}
        assert sum(stage["share"] for stage in rate["stages"]) == pytest.approx(1)


def test_text(cli: Cli) -> None:
    ran = cli(*SMALL, "--profile")
    assert (ran.code, ran.err) == (0, "")
    for fact in (
        "on cpu:0", "f16 KV, context 13", "2 rounds; a decoded token reads", "decode 3 at 9", "prefill 8",
        "memory is read at up to", "median of 6 samples", "decode 3 at 0: ", "a token on the device",
        "gate + up", "waiting for other threads",
    ):  # fmt: skip
        assert fact in ran.out, fact
    err = cli(*SMALL, "-v").err
    assert "decode 3 at 0: warming up" in err
    assert "prefill 8: round 2 of 2" in err


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_the_kv_type_is_named(cli: Cli, device: str) -> None:
    assert report_of(cli, "--device", device, "--kv-dtype", "q8_0")["kv_dtype"] == "q8_0"


def test_a_device_without_a_yardstick_has_no_shares(cli: Cli) -> None:
    out = cli(*SMALL, "--device", "reference").out
    assert "there are no shares" in out
    assert "memory is read" not in out


def test_a_fault_of_the_yardstick_is_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(self: ReadBandwidth) -> float:
        self.samples.append(1.0)
        self.best = 1.0
        return 1.0

    monkeypatch.setattr(ReadBandwidth, "sample", short)
    ran = cli(*SMALL)
    assert ran.code == 0
    assert "fault: decode 3 at 9 reaches" in ran.out
    assert len(report_of(cli)["faults"]) == 2


def test_cold_starts(cli: Cli) -> None:
    ran = cli("bench", "-m", TINY, "--device", "reference", "--decode", "1", "--depth", "0", "--prefill", "0",
              "--rounds", "1", "--cold", "--threads", "1", "--kv-dtype", "f32")  # fmt: skip
    assert ran.code == 0, ran.err
    assert "cold start: first token after" in ran.out


def test_defaults(cli: Cli) -> None:
    from ostinato.cli import bench as module

    works = module._works(module.DECODE, module.DEPTHS, module.PROMPTS)
    assert [work.name for work in works] == ["decode 64 at 0", "decode 64 at 1024", "prefill 512"]
    assert module.ROUNDS == 5


@pytest.mark.parametrize(("arguments", "text"), [
    (["--decode", "0", "--prefill", "0"], "nothing to measure"),
    (["--decode", "-1"], "--decode"),
    (["--depth", "-1"], "--depth"),
    (["--rounds", "0"], "--rounds"),
    (["--tokens", "3"], "--tokens is only for --modes"),
    (["--modes", "--decode", "0"], "--decode is not for --modes"),
    (["--modes", "--depth", "3"], "--depth is not for --modes"),
    (["--modes", "--prefill", "3"], "--prefill is not for --modes"),
    (["--modes", "--profile"], "--profile is not for --modes"),
    (["--modes", "--cold"], "--cold is not for --modes"),
    (["--context", "10"], "context is 10, expected at least 13"),
    (["--kv-dtype", "q4"], "--kv-dtype"),
    (["--device", "nosuch"], "nosuch"),
])  # fmt: skip
def test_nonsense_is_refused(cli: Cli, arguments: list[str], text: str) -> None:
    small = [] if "--modes" in arguments or "0" in arguments or "--tokens" in arguments else SMALL[3:]
    ran = cli("bench", "-m", TINY, *small, *arguments)
    assert ran.code == (1 if "nosuch" in arguments else 2), ran.err
    assert ran.out == ""
    assert text in ran.err
