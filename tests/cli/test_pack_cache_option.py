"""`--pack-cache`: a second start maps what the first one packed, and says the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import TINY

from ostinato import LLM
from ostinato.cli.bench import _options
from ostinato.devices.cpu.bandwidth import ReadBandwidth
from ostinato.devices.cpu.device import CpuDevice
from ostinato.errors import InvalidSetting
from ostinato.runtime import pack_cache
from ostinato.runtime.pack_cache import PackCache

Cli = Callable[..., Any]

RUN = ("run", "-m", TINY, "--raw", "--temperature", "0", "--max-tokens", "4", "abc")
BENCH = ("bench", "-m", TINY, "--decode", "2", "--depth", "0", "--prefill", "0", "--rounds", "1")


@pytest.fixture(autouse=True)
def _room_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_cache, "SPARE", 0)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each weight that is packed."""
    calls: list[int] = []
    pack = CpuDevice.pack
    monkeypatch.setattr(CpuDevice, "pack", lambda *given: (calls.append(1), pack(*given))[1])
    return calls


def test_run(cli: Cli, tmp_path: Path, packed: list[int]) -> None:
    without, first = cli(*RUN), cli(*RUN, "--pack-cache")
    count = len(packed)
    second = cli(*RUN, "--pack-cache")
    assert len(packed) == count > 0
    assert without.out == first.out == second.out != ""
    assert len(list((tmp_path / "cache" / "packed").iterdir())) == 1


def test_nothing_is_kept_unless_asked_for(cli: Cli, tmp_path: Path) -> None:
    assert cli(*RUN).code == 0
    assert not (tmp_path / "cache" / "packed").exists()


def test_bench(cli: Cli, monkeypatch: pytest.MonkeyPatch, packed: list[int], tmp_path: Path) -> None:
    monkeypatch.setattr(CpuDevice, "read_bandwidth", lambda self: ReadBandwidth(self.engine, 1 << 20))
    assert cli(*RUN, "--pack-cache").code == 0
    count = len(packed)
    assert cli(*BENCH, "--pack-cache").code == 0
    assert len(packed) == count
    assert len(PackCache(tmp_path / "cache" / "packed").entries()) == 1


def test_bench_of_the_three_modes(cli: Cli, packed: list[int]) -> None:
    ran = [cli("bench", "--modes", "-m", TINY, "--tokens", "2", "--rounds", "1", "--pack-cache")]
    count = len(packed)
    ran.append(cli("bench", "--modes", "-m", TINY, "--tokens", "2", "--rounds", "1", "--pack-cache"))
    assert [each.code for each in ran] == [0, 0]
    assert len(packed) == count > 0


def test_cold_starts_are_timed_with_it() -> None:
    assert _options({"threads": 2, "device": None, "pack_cache": True}) == ["--threads", "2", "--pack-cache"]
    assert _options({"threads": None, "device": "cpu", "pack_cache": False}) == ["--device", "cpu"]


def test_a_device_that_can_not_map_is_refused(cli: Cli) -> None:
    ran = cli(*RUN, "--pack-cache", "--device", "reference")
    assert ran.code == 2
    assert "pack_cache" in ran.err
    with pytest.raises(InvalidSetting, match="reference:0, expected a device that maps packed weights"):
        LLM("no such model is looked for", device="reference", pack_cache=True)
    with pytest.raises(InvalidSetting, match="pack_cache"):
        LLM("no such model is looked for", pack_cache="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("command", [RUN, BENCH])
def test_who_asked_hears_where_nothing_can_be_kept(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """In /proc not even root makes folders."""
    monkeypatch.setattr(CpuDevice, "read_bandwidth", lambda self: ReadBandwidth(self.engine, 1 << 20))
    monkeypatch.setenv("OSTINATO_CACHE_DIR", "/proc/nosuch")
    ran = cli(*command, "--pack-cache")
    assert ran.code == 0
    assert ran.err.count("packed weights: not kept in /proc/nosuch/packed: ") == 1
    assert "not kept" not in cli(*command).err
