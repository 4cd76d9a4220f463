"""Profiles of runs: where a token's time goes, adding up to all of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ostinato.decode.forward import forward_with_kv_context_captured
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.slot import DecodeSlot
from ostinato.device.measures import Profiles, ReadsMemory, Stage
from ostinato.devices.cpu.device import CpuDevice
from ostinato.devices.cpu.image import PROFILE
from ostinato.devices.cpu.profile import Recorder, _Stamped
from ostinato.devices.cpu.program import CpuBound
from ostinato.devices.reference import ReferenceDevice
from ostinato.ir import encoding as enc
from ostinato.ir.location import Location
from ostinato.models.loader import load_model
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-llama-grouped.gguf"
A, B = Stage("Product", "q"), Stage("Attend")


class Decoding:
    """A model on a CPU device of its own, token after token."""

    def __init__(self, threads: int) -> None:
        self.device = CpuDevice(threads=threads)
        devices = Registry()
        devices.register(self.device)
        self.context = InferenceContext(Location("cpu"), devices)
        self.model = load_model(TINY)
        self.cache = KvCache.allocate(self.model, self.context, 32, enc.F16)
        self.slot = DecodeSlot()
        self.slot.acquire()

    def token(self, token: int) -> np.ndarray:
        return forward_with_kv_context_captured(self.model, [token], self.cache, self.context, self.slot)

    @property
    def bound(self) -> CpuBound:
        assert self.slot.capture is not None
        bound = self.slot.capture._captured._bound  # type: ignore[attr-defined]
        assert isinstance(bound, CpuBound)
        return bound


@pytest.mark.parametrize("threads", [1, 2])
def test_stages_and_waiting_add_up(threads: int) -> None:
    decoding = Decoding(threads)
    decoding.token(3)
    with decoding.device.profiled() as profile:
        for token in range(4):
            decoding.token(token)
    runs = profile.runs()
    assert len(runs) == 4
    for run in runs:
        assert run.total > 0
        assert run.waiting >= 0
        assert sum(run.stages.values()) + run.waiting == pytest.approx(run.total)
        assert all(spent >= 0 for spent in run.stages.values())
        weights = {stage.weight for stage in run.stages if stage.kernel.startswith("Product ")}
        assert weights == {"q + k + v", "o", "gate + up", "down", "head"}
        assert Stage("ArgMaxRows ArgMax") in run.stages


def test_runs_are_the_same_and_go_unwatched_afterwards() -> None:
    watched, alone = Decoding(2), Decoding(2)
    with watched.device.profiled() as profile:
        for token in (3, 1, 4):
            assert (watched.token(token) == alone.token(token)).all()
    count = len(profile.runs())
    watched.token(1)
    assert len(profile.runs()) == count
    assert watched.bound._job.record[PROFILE] == 0, "the job points to no buffer that is gone"


def test_a_failed_run_leaves_no_pointer(monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = Decoding(1)
    decoding.token(3)
    job, program = decoding.bound._job, decoding.bound._program

    class Refusing:
        threads = 1

        def run(self, *_: object) -> None:
            assert job.record[PROFILE] != 0
            raise KeyboardInterrupt

    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        recorder.run(Refusing(), job, program.tape, program.stages)  # type: ignore[arg-type]
    assert job.record[PROFILE] == 0
    assert recorder.runs() == []


def test_one_profile_at_a_time() -> None:
    device = CpuDevice()
    with device.profiled(), pytest.raises(AssertionError, match="one profile"):
        device.profiled().__enter__()
    with device.profiled() as profile:
        assert profile.runs() == []


def test_times_from_stamps() -> None:
    """Two threads, three steps, 1000 cycles in 2 seconds."""
    recorder = Recorder()
    first = [[[0, 100], [110, 200], [300, 390]], [[20, 100], [100, 140], [300, 400]]]
    second = [[[600, 700], [700, 800], [800, 900]], [[600, 700], [700, 800], [900, 1000]]]
    recorder._runs = [
        _Stamped([A, B, A], np.array(first), began=5.0, ended=6.0),
        _Stamped([A, B, A], np.array(second), began=6.1, ended=7.0),
    ]
    one, two = recorder.runs()
    assert one.total == pytest.approx(0.8)  # 0 … 400
    assert one.stages == {A: pytest.approx(0.002 * (90 + 95)), B: pytest.approx(0.002 * 65)}
    assert one.waiting == pytest.approx(0.8 - 0.5)
    assert two.total == pytest.approx(0.8)
    assert two.waiting == pytest.approx(0.002 * 100)


def test_devices_that_offer_it() -> None:
    assert isinstance(CpuDevice(), Profiles)
    assert isinstance(CpuDevice(), ReadsMemory)
    assert not isinstance(ReferenceDevice(), Profiles)
    assert not isinstance(ReferenceDevice(), ReadsMemory)
