"""What `ostinato bench` measures: the work that is timed, the bytes that it reads, what rounds come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ostinato.device.measures import RunTimes, Stage
from ostinato.devices.cpu.bandwidth import ReadBandwidth
from ostinato.devices.cpu.device import CpuDevice
from ostinato.engine import rates_report
from ostinato.engine.cold import ColdStart, cold_start
from ostinato.engine.llm import LLM
from ostinato.engine.rates import Rig, Taken, Work
from ostinato.engine.rates_report import measure_rates, rate_of
from ostinato.engine.stages import WAITING, StageShare, shares
from ostinato.errors import InvalidSetting, StartFailed
from ostinato.generate.settings import Sampling

FIXTURES = Path(__file__).parent.parent / "fixtures"
DEVICES = ("reference", "cpu")


def tiny(name: str = "grouped", device: str = "cpu", **settings: Any) -> LLM:
    return LLM(FIXTURES / f"tiny-llama-{name}.gguf", device=device, **settings)


@pytest.fixture
def _small_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuDevice, "read_bandwidth", lambda self: ReadBandwidth(self.engine, 1 << 20))


# the work


@pytest.mark.parametrize("device", DEVICES)
def test_decoding_continues_greedily_after_the_depth(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    llm = tiny("tied", device, context=32)
    rig = Rig(llm)
    taken = rig.time(Work("decode", 5, 9))
    assert 0 < taken.device < taken.seconds
    assert rig.cache.length == 9 + 1 + 5 == Work("decode", 5, 9).positions
    statistics = rig._slot.statistics
    assert (statistics.captured, statistics.captures) == (6, 1), "each token was a replay of one capture"

    said: list[int] = []
    step = rig._token
    monkeypatch.setattr(rig, "_token", lambda token: said.append(step(token)) or said[-1])
    rig.time(Work("decode", 5, 9))
    prompt = [(at * 104729 + 7919) % llm.model.config.vocab_size for at in range(9)] + [5]
    greedy = llm.stream(prompt, max_tokens=6, sampling=Sampling(temperature=0))
    greedy.text()
    assert said == greedy.ids
    assert statistics.sessions_built == 2, "plans stay warm"


def test_the_depth_is_filled_once_and_only_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tiny(context=48))
    filled: list[int] = []
    run = rig._run
    monkeypatch.setattr(rig, "_run", lambda tokens, want: filled.append(len(tokens)) or run(tokens, want))
    rig.time(Work("decode", 2, 30))
    assert filled == [30, 1, 1, 1]
    filled.clear()
    rig.time(Work("decode", 2, 30))
    rig.time(Work("decode", 2, 10))
    assert filled == [1] * 6
    filled.clear()
    rig.time(Work("prefill", 40))
    assert (filled, rig.cache.length) == ([40], 40)


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_token_reads_of_the_weights(device: str) -> None:
    """An embedding that is no head as well is only looked up; one that is counts once."""
    for name, left_out in (("tied", []), ("grouped", ["embedding"])):
        rig = Rig(tiny(name, device, context=16))
        rig.time(Work("decode", 1))
        store = rig.model.weights.store_on(rig.context.devices.device(rig.context.location))
        packed = {recipe.names: storage.nbytes for recipe, storage in store._packed.items()}
        assert {weight for names in packed for weight in names} == set(rig.model.weights)
        assert rig.weight_bytes() == store.nbytes - sum(packed[weight,] for weight in left_out)


def test_what_a_token_reads_of_the_cache() -> None:
    llm = tiny(context=32, kv_dtype="f16")
    (layer, *_), count = llm.model.config.kv, len(llm.model.config.kv)
    cell = layer.kv_heads * (layer.k_dim + layer.v_dim) * count * 2
    rig = Rig(llm)
    assert rig.kv_bytes(Work("decode", 1, 0)) == 2 * cell  # the token before the clock, and itself
    assert rig.kv_bytes(Work("decode", 3, 10)) == (12 + 13 + 14) / 3 * cell
    assert Rig(tiny(context=32, kv_dtype="f32")).kv_bytes(Work("decode", 1, 0)) == 4 * cell
    blocks = layer.kv_heads * 2 * count  # a head of 8 elements is one block for K and one for V
    assert Rig(tiny(context=32, kv_dtype="q8_0")).kv_bytes(Work("decode", 1, 0)) == 2 * 34 * blocks


def test_a_window_bounds_what_a_token_reads_of_the_cache() -> None:
    llm = tiny("window", context=60)
    rig = Rig(llm)
    windows = {layer.window for layer in llm.model.config.kv}
    assert None not in windows
    assert rig.kv_bytes(Work("decode", 4, 40)) == rig.kv_bytes(Work("decode", 8, 50))


# what the rounds come to


def test_spread_share_and_host_time() -> None:
    taken = [Taken(seconds, seconds - 0.001) for seconds in (0.1, 0.2, 0.4, 0.5, 1.0)]
    rate = rate_of(Work("decode", 10, 3), taken, 8e6, 200e6)
    spread = rate.tokens_per_second
    assert (spread.low, spread.median, spread.high) == pytest.approx((10, 25, 100))
    assert (spread.p25, spread.p75) == pytest.approx((20, 50))
    assert rate.host_us_per_token == pytest.approx(100)
    assert rate.share == pytest.approx(1.0)
    assert rate_of(Work("decode", 10), taken, 8e6, None).share is None
    assert rate_of(Work("prefill", 10), taken, None, 200e6).share is None


def test_more_than_the_memory_gives_is_a_fault_of_the_yardstick() -> None:
    taken = [Taken(0.1, 0.1)]
    assert rate_of(Work("decode", 10, 3), taken, 8e6, 800e6).fault is None
    fault = rate_of(Work("decode", 10, 3), taken, 8e6, 799e6).fault
    assert fault is not None
    assert "decode 10 at 3 reaches 1.001 of the bandwidth" in fault


def test_stages_add_up() -> None:
    a, b = Stage("Product q4", "q"), Stage("Attend")
    runs = [RunTimes(1.0, {a: 0.5, b: 0.25}, 0.25), RunTimes(3.0, {a: 0.5, b: 2.0}, 0.5)]
    assert shares([[runs[0]], [runs[1]]], 1) == (
        StageShare("Attend", "", 1125000, 2.25 / 4),
        StageShare("Product q4", "q", 500000, 1.0 / 4),
        StageShare(WAITING, "", 375000, 0.75 / 4),
    )
    assert shares([runs], 4)[0].us_per_token == pytest.approx(2.25 / 4 * 1e6)


@pytest.mark.usefixtures("_small_yardstick")
def test_a_report_of_the_cpu() -> None:
    works = [Work("decode", 3), Work("decode", 3, 12), Work("prefill", 20)]
    told: list[tuple[str, int]] = []
    report = measure_rates(
        tiny(context=32), works, rounds=2, profile=True,
        on_round=lambda work, number: told.append((work.name, number)),
    )  # fmt: skip
    names = ["decode 3 at 0", "decode 3 at 12", "prefill 20"]
    assert told == [(n, 0) for n in names] + [(n, i) for n in names for i in (1, 2)]
    assert [rate.work for rate in report.rates] == works
    assert len(report.bandwidth_samples) == 2 * len(works), "the yardstick is read before each round"
    assert report.bandwidth_best is not None
    assert report.bandwidth_best >= max(report.bandwidth_samples)
    decode, deeper, prefill = report.rates
    assert decode.bytes_per_token is not None
    assert deeper.bytes_per_token is not None
    assert decode.share == decode.bytes_per_token * decode.tokens_per_second.median / report.bandwidth_best
    assert report.weight_bytes < decode.bytes_per_token < deeper.bytes_per_token
    assert (prefill.share, prefill.bytes_per_token) == (None, None)
    for rate in report.rates:
        assert rate.stages[-1].kernel == WAITING
        assert sum(stage.share for stage in rate.stages) == pytest.approx(1)
        assert any(stage.weight == "gate + up" for stage in rate.stages)
    if report.memory is not None:
        assert report.memory.peak >= report.memory.anonymous > 0


@pytest.mark.usefixtures("_small_yardstick")
def test_a_yardstick_that_is_too_short_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(self: ReadBandwidth) -> float:
        self.samples.append(1.0)
        self.best = 1.0
        return 1.0

    monkeypatch.setattr(ReadBandwidth, "sample", short)
    report = measure_rates(tiny(context=16), [Work("decode", 3), Work("prefill", 5)], rounds=1)
    (fault,) = report.faults
    assert "decode 3 at 0" in fault
    assert report.as_dict()["faults"] == (fault,)


def test_a_report_of_a_device_that_measures_nothing_itself() -> None:
    report = measure_rates(tiny(device="reference", context=16), [Work("decode", 3)], rounds=1, profile=True)
    assert (report.bandwidth_best, report.bandwidth_samples, report.faults) == (None, (), ())
    (rate,) = report.rates
    assert (rate.share, rate.stages) == (None, ())
    assert rate.tokens_per_second.median > 0
    assert report.as_dict()["bandwidth"] is None


def test_work_that_the_context_has_no_room_for() -> None:
    with pytest.raises(InvalidSetting, match="context is 16, expected at least 17"):
        measure_rates(tiny(context=16), [Work("decode", 6, 10)], rounds=1)
    with pytest.raises(InvalidSetting, match="rounds"):
        measure_rates(tiny(context=16), [Work("decode", 3)], rounds=0)


# cold starts


def test_a_cold_start() -> None:
    start = cold_start(FIXTURES / "tiny-llama-tied.gguf", ["--device", "reference"])
    assert 0 < start.first_token < start.whole


def test_a_start_that_fails_says_why() -> None:
    with pytest.raises(StartFailed, match="exit code 1") as raised:
        cold_start(FIXTURES / "none.gguf")
    assert "none.gguf" in raised.value.said


def test_cold_starts_are_reported() -> None:
    starts = [ColdStart(1.0, 2.0), ColdStart(0.5, 0.75)]
    report = measure_rates(tiny(device="reference", context=16), [Work("decode", 2)], rounds=1, cold=starts)
    assert report.as_dict()["cold"] == (
        {"first_token": 1.0, "whole": 2.0},
        {"first_token": 0.5, "whole": 0.75},
    )


def test_a_system_that_tells_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates_report, "memory_use", lambda: None)
    report = measure_rates(tiny(device="reference", context=16), [Work("decode", 2)], rounds=1)
    assert report.memory is None
