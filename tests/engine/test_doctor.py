"""What the doctor makes of machines and folders that aren't as they should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.devices.cpu import isa, selftest
from ostinato.devices.cpu.bandwidth import ReadBandwidth
from ostinato.devices.cpu.device import CpuDevice
from ostinato.engine import doctor
from ostinato.engine.doctor import Health, examine
from ostinato.errors import InstructionSetMissing, SelfTestFailed
from ostinato.host.limits import CpuLimits
from ostinato.ir.location import Location
from ostinato.runtime.registry import registry

CPU = Location("cpu")


@pytest.fixture(autouse=True)
def _own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OSTINATO_THREADS", "OSTINATO_CPU", "OSTINATO_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OSTINATO_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def anew() -> None:
    """No cpu device has been made in this process yet."""
    before = registry._devices.pop(CPU, None)
    yield
    registry._devices.pop(CPU, None)
    if before is not None:
        registry._devices[CPU] = before


def problems(health: Health) -> dict[str, str]:
    return {problem.what: problem.remedy for problem in health.problems}


def limits(monkeypatch: pytest.MonkeyPatch, **changed: object) -> None:
    values = {"present": 8, "allowed": 4, "cores": 2, "quota": None, **changed}
    monkeypatch.setattr(doctor, "cpu_limits", lambda: CpuLimits(**values))  # type: ignore[arg-type]


def test_a_machine_as_it_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch)
    health = examine(measure=False)
    assert (health.threads.used, health.threads.cores, health.threads.quota) == (2, 2, None)
    assert problems(health) == {} or "generic code" in str(problems(health))
    assert health.as_dict()["problems"] == [vars_of(problem) for problem in health.problems]


def vars_of(problem: doctor.Problem) -> dict[str, str]:
    return {"what": problem.what, "remedy": problem.remedy}


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch)
    monkeypatch.setenv("OSTINATO_THREADS", "3")
    health = examine(measure=False)
    assert health.threads.used == 3
    (what,) = [what for what in problems(health) if "OSTINATO_THREADS" in what]
    assert "asks for 3 threads, this process can have 2 cores" in what


def test_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch, quota=1.5)
    health = examine(measure=False)
    assert (health.threads.used, health.threads.quota) == (1, 1.5)
    assert not any("control group" in what for what in problems(health))
    limits(monkeypatch, quota=0.5)
    assert any("grants 0.5 of a CPU" in what for what in problems(examine(measure=False)))


def test_a_folder_that_others_can_write(tmp_path: Path) -> None:
    code = tmp_path / "cache" / "code"
    code.mkdir(parents=True)
    code.chmod(0o777)
    health = examine(measure=False)
    assert "others may write" in (health.code_cache.not_used_because or "")
    (remedy,) = [remedy for what, remedy in problems(health).items() if "compiled code is not kept" in what]
    assert "chmod 700" in remedy


def test_a_folder_that_can_not_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: Path(path) != tmp_path)
    monkeypatch.setattr(doctor, "find_installed", lambda alias: None)
    health = examine(measure=False)
    assert health.code_cache.not_used_because == f"{tmp_path} can't be written"
    assert any("models can't be kept" in what for what in problems(health))


def test_where_the_default_model_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_installed", lambda alias: None)
    assert examine(measure=False).model_cache.default is None
    model = tmp_path / "cache" / "models" / "smollm2.gguf"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"12345")
    found = examine(measure=False).model_cache
    assert (found.default, found.models, found.bytes) == (str(model), 1, 5)


def test_generic_code_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "host_features", lambda: frozenset())
    health = examine(measure=False)
    assert (health.instruction_sets.selected, health.instruction_sets.usable) == ("generic", ("generic",))
    assert any("generic code" in what for what in problems(health))
    monkeypatch.setenv("OSTINATO_CPU", "generic")
    assert not any("generic code" in what for what in problems(examine(measure=False)))


@pytest.mark.usefixtures("anew")
def test_an_instruction_set_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise InstructionSetMissing("avx2", ("avx2",), ("generic",))

    monkeypatch.setattr(isa, "select", missing)
    health = examine(measure=True)
    assert health.devices[1].why_not == "this CPU can't run avx2 code, it lacks avx2"
    assert (
        "Unset OSTINATO_CPU"
        in problems(health)[f"the device cpu:0 can't be used: {health.devices[1].why_not}"]
    )
    assert health.bandwidth == {}


@pytest.mark.usefixtures("anew")
def test_kernels_that_compute_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(engine: object) -> None:
        raise SelfTestFailed("avx2", "3", "4")

    monkeypatch.setattr(selftest, "check", wrong)
    health = examine(measure=False)
    assert "compute wrong results" in (health.devices[1].why_not or "")
    assert any("OSTINATO_CPU=generic" in remedy for remedy in problems(health).values())


def test_bandwidth_is_the_best_of_some_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([5.0, 9.0, 7.0])

    class Yardstick:
        best = 0.0

        def sample(self) -> None:
            self.best = max(self.best, next(rates))

    monkeypatch.setattr(CpuDevice, "read_bandwidth", lambda self: Yardstick())
    assert examine().bandwidth == {"cpu:0": 9.0}


def test_too_little_memory_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_memory", lambda: 900 << 20)
    monkeypatch.setattr(CpuDevice, "read_bandwidth", lambda self: pytest.fail("memory was taken"))
    health = examine()
    assert health.bandwidth == {}
    assert any("too little to measure" in what for what in problems(health))
    monkeypatch.setattr(doctor, "available_memory", lambda: None)
    monkeypatch.setattr(CpuDevice, "read_bandwidth", lambda self: ReadBandwidth(self.engine, 1 << 20))
    assert examine().bandwidth["cpu:0"] > 0
