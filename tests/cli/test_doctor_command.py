"""`ostinato doctor`: what it finds, and that it always ends well."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.devices.cpu.bandwidth import ReadBandwidth
from ostinato.devices.cpu.device import CpuDevice

Cli = Callable[..., Any]
QUICK = ["doctor", "--no-measure"]


@pytest.fixture(autouse=True)
def _small_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuDevice, "read_bandwidth", lambda self: ReadBandwidth(self.engine, 1 << 20))
    monkeypatch.delenv("OSTINATO_CPU", raising=False)
    monkeypatch.delenv("OSTINATO_OFFLINE")


def test_json(cli: Cli, tmp_path: Path) -> None:
    ran = cli("doctor", "--json")
    assert (ran.code, ran.err) == (0, "")
    report = json.loads(ran.out)
    assert set(report) == {
        "versions", "system", "threads", "instruction_sets", "free_memory", "bandwidth", "code_cache",
        "model_cache", "devices", "problems",
    }  # fmt: skip
    assert set(report["versions"]) == {"ostinato", "python", "numpy", "llvmlite", "llvm"}
    assert set(report["system"]) == {"os", "cpu"}
    assert set(report["threads"]) == {"used", "present", "allowed", "cores", "quota"}
    sets = report["instruction_sets"]
    assert sets["selected"] in sets["usable"]
    assert set(sets["usable"]) <= set(sets["known"])
    assert set(report["code_cache"]) == {"path", "entries", "bytes", "cap", "not_used_because"}
    assert report["code_cache"]["path"] == str(tmp_path / "cache" / "code")
    assert set(report["model_cache"]) == {"path", "models", "bytes", "default"}
    assert report["devices"] == [
        {"name": "reference:0", "default": False, "why_not": None},
        {"name": "cpu:0", "default": True, "why_not": None},
    ]
    assert list(report["bandwidth"]) == ["cpu:0"]
    assert report["bandwidth"]["cpu:0"] > 0


def test_text(cli: Cli) -> None:
    ran = cli("doctor")
    assert (ran.code, ran.err) == (0, "")
    for fact in (
        "ostinato ", "Python ", "numpy ", "llvmlite ", "LLVM ", "usable here: ", "logical CPUs",
        "free, cpu:0 reads", "reference:0: ready", "cpu:0 (the default): ready", "compiled code", "models",
    ):  # fmt: skip
        assert fact in ran.out, fact
    assert "reading memory" in cli("doctor", "-v").err


def test_nothing_is_measured_where_that_is_unwanted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuDevice, "read_bandwidth", None)
    assert json.loads(cli(*QUICK, "--json").out)["bandwidth"] == {}
    assert "reads up to" not in cli(*QUICK).out


def test_a_problem_comes_with_its_remedy(shell: Callable[..., Any]) -> None:
    ran = shell(*QUICK, OSTINATO_THREADS="many", OSTINATO_CPU="mmx", OSTINATO_OFFLINE="1")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    for problem, remedy in (
        ("OSTINATO_THREADS='many'", "Correct or unset OSTINATO_THREADS."),
        ("the default model smollm2 isn't there", "Unset OSTINATO_OFFLINE once"),
    ):
        (at,) = [i for i, line in enumerate(lines) if line.startswith("problem: ") and problem in line]
        assert remedy in lines[at + 1]
    assert "no problems found" not in ran.out


def test_a_device_that_can_not_be_made(shell: Callable[..., Any]) -> None:
    ran = shell(*QUICK, "--json", OSTINATO_CPU="mmx")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    reference, cpu = report["devices"]
    assert reference["why_not"] is None
    assert "OSTINATO_CPU is 'mmx'" in cpu["why_not"]
    (problem,) = [p for p in report["problems"] if "cpu:0" in p["what"]]
    assert problem["remedy"] == "Correct or unset OSTINATO_CPU."
    assert report["instruction_sets"]["selected"] == ""
    assert "generic" in report["instruction_sets"]["usable"]


def test_without_the_compiler(shell: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "llvmlite").mkdir()
    (tmp_path / "llvmlite" / "__init__.py").write_text("raise ImportError('broken')")
    ran = shell(*QUICK, "--json", PYTHONPATH=str(tmp_path))
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert "broken" in report["devices"][1]["why_not"]
    assert report["instruction_sets"]["usable"] == []
    assert "llvm" not in report["versions"]
    assert any("pip install llvmlite" in problem["remedy"] for problem in report["problems"])


def test_wrong_usage(cli: Cli) -> None:
    assert cli("doctor", "--nosuch").code == 2
