"""Whether it fits is said before anything is loaded, with all three numbers; and they are true."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.decode.forward import forward_with_kv_context, forward_with_kv_context_persistent
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.slot import DecodeSlot
from ostinato.device.encoded import EncodedTensor
from ostinato.devices.cpu.device import CpuDevice
from ostinato.devices.cpu.program import CpuProgram
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.engine import llm as llm_module
from ostinato.engine import memory, token_loop
from ostinato.engine.llm import LLM
from ostinato.engine.memory import bytes_needed, kv_bytes, step_bytes, weight_bytes
from ostinato.engine.pool import PlanMode
from ostinato.engine.receipt import Receipt
from ostinato.engine.token_loop import generate_tokens
from ostinato.errors import NotEnoughMemory
from ostinato.generate.sampler import Sampler
from ostinato.generate.settings import Sampling
from ostinato.ir import encoding as enc
from ostinato.models.contract import Model
from ostinato.models.loader import load_model
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry
from ostinato.runtime.weights import WeightSet
from ostinato.text import Tokenizer
from sabotage import goes_red, nothing
from settled import settled


def free(monkeypatch: pytest.MonkeyPatch, count: int | None) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: count)


@pytest.fixture
def needs(llm: LLM) -> Callable[[int], int]:
    """Bytes that are needed for a context."""
    traits = llm.inference.devices.device(llm.inference.location).traits
    return bytes_needed(llm.model, traits, llm.kv_dtype)


DEVICES = ("cpu", "reference")


@pytest.mark.parametrize("weights", [None, "f16", "q8_0", "q4_1"])
@pytest.mark.parametrize("device", DEVICES)
def test_weights_and_kv_are_what_is_really_taken(llm: LLM, device: str, weights: str | None) -> None:
    """A vocabulary of 260 rows is 17 groups of 16, a head of 8 elements takes 16, 40 positions take 64."""
    mine = LLM(llm.file.path, device=device, weights=weights)
    mine.generate("x", max_tokens=1)
    at = mine.inference.devices.device(mine.inference.location)
    assert weight_bytes(mine.model, at.traits) == mine.model.weights.store_on(at).nbytes
    for dtype, layout in at.traits.kv_layouts.items():
        for context in (1, 10, 32, 40, 64):
            cache = KvCache.allocate(mine.model, mine.inference, context, dtype)
            assert kv_bytes(mine.model, layout, context) == cache.nbytes


def test_joined_weights_take_no_more_than_was_reckoned_with(fixtures: Path) -> None:
    """24 + 8 + 8 rows are 3 groups together and 4 apart."""
    model = toy(fixtures / "tiny-llama-grouped.gguf", {"heads": 3, "kv_heads": 1})
    devices = Registry()
    devices.register(CpuDevice())
    context = InferenceContext("cpu", devices)
    forward_with_kv_context(model, [1], KvCache.allocate(model, context, 8), context)
    device = devices.device(context.location)
    spared = weight_bytes(model, device.traits) - model.weights.store_on(device).nbytes
    assert spared == 16 * model.config.dim * 4


# What a step takes, measured

TOYS: dict[str, tuple[str, dict[str, Any], int, enc.Encoding]] = {
    # fixture, changes of its Config, context, KV: each is ruled by another term of what is reckoned
    "scores": ("tiny-llama-grouped.gguf", {}, 2048, enc.F32),
    "scores of one head": ("tiny-llama-window.gguf", {"heads": 1, "kv_heads": 1}, 2048, enc.F32),
    "scores beside a window": ("tiny-llama-window.gguf", {}, 2048, enc.F16),
    "fewer rows, more KV": ("tiny-llama-grouped.gguf", {"heads": 8, "kv_heads": 8}, 6000, enc.F16),
    "one row, its KV": ("tiny-llama-grouped.gguf", {"heads": 8, "kv_heads": 8}, 20_000, enc.F16),
    "feed-forward": ("tiny-llama-grouped.gguf", {"ffn_dim": 12_000}, 600, enc.F32),
    "GELU": ("tiny-phi.gguf", {"ffn_dim": 12_000}, 600, enc.F32),
    "Phi's scores": ("tiny-phi.gguf", {}, 2048, enc.F32),
}


def toy(path: Path, changes: dict[str, Any]) -> Model:
    """Random weights for a changed Config."""
    tiny = load_model(path)
    config = replace(tiny.config, n_layers=1, **changes)  # type: ignore[type-var,call-arg]
    random = np.random.default_rng(0)
    tensors = {}
    for name, spec in tiny.family.weight_specs(config).items():
        values = random.standard_normal(spec.shape, np.float32) * np.float32(0.02)
        raw = values.view(np.uint8).reshape(spec.shape[0], -1)
        tensors[name] = EncodedTensor(name, spec.shape, enc.F32, raw)
    return Model(tiny.family, config, WeightSet(tensors), path)


def peak(model: Model, context: InferenceContext, capacity: int, dtype: enc.Encoding, last: int) -> int:
    """The most bytes that the steps hold which fill the `last` of `capacity` positions."""
    cache = KvCache.allocate(model, context, capacity, dtype)
    greedy = Sampler(Sampling(temperature=0.0))

    def generate(count: int) -> None:
        tokens = generate_tokens(
            model, [1] * count, cache, context, greedy,
            max_tokens=1, end_ids=(), receipt=Receipt(), mode=PlanMode.REPLAN,
        )  # fmt: skip
        assert len(list(tokens)) == 1

    generate(1)  # weights are packed, templates made
    cache.truncate_to(0)
    cache.advance(capacity - last)  # as if the steps before had run
    settled()
    tracemalloc.start()
    try:
        generate(last)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", TOYS)
def test_no_step_takes_more_than_was_reckoned_with(
    fixtures: Path, context: InferenceContext, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    one_row = name == "one row, its KV"
    monkeypatch.setattr(memory, "SCORES", 1 if one_row else 1 << 21)
    fixture, changes, capacity, dtype = TOYS[name]
    model = toy(fixtures / fixture, changes)
    taken = peak(model, context, capacity, dtype, 3 if one_row else 600)
    reckoned = step_bytes(model, context.devices.device(context.location).traits)(capacity)
    assert reckoned / 3 < taken <= reckoned


@pytest.mark.parametrize("name", ["scores", "fewer rows, more KV", "feed-forward", "Phi's scores"])
def test_no_step_of_the_cpu_device_takes_more_than_was_reckoned_with(
    fixtures: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its plans say what they take: an arena for the largest step, and each thread's own memory."""
    made: list[CpuProgram] = []
    init = CpuProgram.__init__

    def noted(self: CpuProgram, *arguments: Any) -> None:
        init(self, *arguments)
        made.append(self)

    monkeypatch.setattr(CpuProgram, "__init__", noted)
    devices = Registry()
    devices.register(CpuDevice(threads=2))
    context = InferenceContext("cpu", devices)
    fixture, changes, capacity, dtype = TOYS[name]
    model = toy(fixtures / fixture, changes)
    reckoned = step_bytes(model, devices.device(context.location).traits)(capacity)
    slot, cache = DecodeSlot(), KvCache.allocate(model, context, capacity, dtype)
    for count in (512, 1):
        forward_with_kv_context_persistent(model, [1] * count, cache, context, slot)
    taken = [program.tape.arena_bytes + 2 * program.tape.scratch_bytes for program in made]
    assert len(taken) == 2
    assert reckoned / 8 < max(taken) <= reckoned  # gate and up are one product, and leave one value


def test_sabotage_the_bound_of_a_step(
    fixtures: Path, context: InferenceContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_red(
        monkeypatch, token_loop, "prefill_rows", lambda model, traits, length: 1 << 30,
        lambda: test_no_step_takes_more_than_was_reckoned_with(
            fixtures, context, monkeypatch, "fewer rows, more KV"
        ),
    )  # fmt: skip


GROWTH = """
import sys
from ostinato.engine import llm as module
from ostinato.engine import memory

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

def check(*arguments):
    global before
    before = status("VmRSS")
    real(*arguments)

real, module.check_memory = module.check_memory, check
llm = module.LLM(sys.argv[1], device=sys.argv[2])
llm.chat("hi").text()
traits = llm.inference.devices.device(llm.inference.location).traits
print(status("VmHWM") - before, memory.bytes_needed(llm.model, traits, llm.kv_dtype)(llm.context))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system doesn't tell")
@pytest.mark.parametrize("device", DEVICES)
def test_a_process_grows_by_less_than_it_was_said_to_need(llm: LLM, device: str, tmp_path: Path) -> None:
    """What is imported, compiled and built after the check is what HEADROOM is for: without it this fails."""
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(llm.file.path), device],
        env={**os.environ, "OSTINATO_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    grown, need = map(int, done.stdout.split())
    assert need - memory.HEADROOM < grown <= need


# What is said


def refused(llm: LLM, needs: Callable[[int], int], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        free(patch, needs(41) - 1)
        with pytest.raises(NotEnoughMemory) as raised:
            LLM(llm.file.path)
        error = raised.value
        assert (error.need, error.free) == (needs(64), needs(41) - 1)
        assert (error.context, error.fits) == (64, 40)
        assert "context of 64" in str(error)
        assert str(error).count("GiB") == 2
        assert "--context 40" in error.remedy
        assert isinstance(error, MemoryError)
        with pytest.raises(NotEnoughMemory):
            LLM(llm.file.path, context=41)
        fitting = LLM(llm.file.path, context=40)  # the largest that fits does
        # greedily: a sampled answer may end before it begins
        assert len(fitting.generate("hi", sampling=Sampling(temperature=0.0))) > 0


def test_need_free_and_the_largest_context_that_fits(
    llm: LLM, needs: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(llm, needs, monkeypatch)


def test_sabotage_check_memory(
    llm: LLM, needs: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_red(monkeypatch, llm_module, "check_memory", nothing, lambda: refused(llm, needs, monkeypatch))


def test_nothing_is_loaded_before_it_is_said(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: Any, **__: Any) -> None:
        raise AssertionError("loaded before the check")

    free(monkeypatch, 1000)
    devices = [
        (kind, name)
        for kind in (ReferenceDevice, CpuDevice)
        for name in ("pack", "allocate", "allocate_slab")
    ]
    for owner, name in (*devices, (Tokenizer, "from_gguf")):
        monkeypatch.setattr(owner, name, loaded)
    with pytest.raises(NotEnoughMemory):
        LLM(llm.file.path)


def test_when_the_weights_alone_do_not_fit(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 1000)
    with pytest.raises(NotEnoughMemory) as raised:
        LLM(llm.file.path)
    assert raised.value.fits == 0
    assert "weights alone" in raised.value.remedy


@pytest.mark.parametrize("context", [10**15, 10**40])
def test_an_absurd_context_is_refused_by_memory(fixtures: Path, context: int) -> None:
    with pytest.raises(NotEnoughMemory):
        LLM(fixtures / "tiny-llama-grouped.gguf", context=context)


def test_a_system_that_does_not_tell_is_trusted(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, None)
    assert LLM(llm.file.path).context == 64


def test_a_smaller_kv_dtype_makes_room(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    traits = llm.inference.devices.device(llm.inference.location).traits
    free(monkeypatch, bytes_needed(llm.model, traits, enc.F32)(64) - 1)
    with pytest.raises(NotEnoughMemory):
        LLM(llm.file.path, kv_dtype="f32")
    assert LLM(llm.file.path, kv_dtype="f16").context == 64
