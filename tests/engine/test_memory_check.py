"""Whether it fits is said before anything is loaded, with all three numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ostinato.decode.kv_cache import KvCache
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.engine import llm as llm_module
from ostinato.engine import memory
from ostinato.engine.llm import LLM
from ostinato.engine.memory import HEADROOM, kv_bytes_per_position, weight_bytes
from ostinato.errors import NotEnoughMemory
from ostinato.ir.dtype import DType
from ostinato.text import Tokenizer
from sabotage import goes_red, nothing


def free(monkeypatch: pytest.MonkeyPatch, count: int | None) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: count)


@pytest.fixture
def needs(llm: LLM) -> tuple[int, int]:
    """Bytes that are needed without any context, and for each position of it."""
    traits = llm.inference.devices.device(llm.inference.location).traits
    return weight_bytes(llm.model, traits) + HEADROOM, kv_bytes_per_position(llm.model, llm.kv_dtype)


def test_the_estimate_is_what_is_really_taken(llm: LLM, needs: tuple[int, int]) -> None:
    fixed, per_position = needs
    llm.generate("x", max_tokens=1)
    device = llm.inference.devices.device(llm.inference.location)
    assert fixed - HEADROOM == llm.model.weights.store_on(device).nbytes
    assert per_position * 64 == llm.new_cache().nbytes
    half = KvCache.allocate(llm.model, llm.inference, 10, DType.F16)
    assert kv_bytes_per_position(llm.model, DType.F16) * 10 == half.nbytes


def refused(llm: LLM, needs: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    fixed, per_position = needs
    with monkeypatch.context() as patch:
        free(patch, fixed + 40 * per_position + per_position - 1)
        with pytest.raises(NotEnoughMemory) as raised:
            LLM(llm.file.path)
        error = raised.value
        assert (error.need, error.free) == (fixed + 64 * per_position, fixed + 41 * per_position - 1)
        assert (error.context, error.fits) == (64, 40)
        assert "context of 64" in str(error)
        assert str(error).count("GiB") == 2
        assert "--context 40" in error.remedy
        assert isinstance(error, MemoryError)
        with pytest.raises(NotEnoughMemory):
            LLM(llm.file.path, context=41)
        assert len(LLM(llm.file.path, context=40).generate("hi")) > 0  # the largest that fits does


def test_need_free_and_the_largest_context_that_fits(
    llm: LLM, needs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(llm, needs, monkeypatch)


def test_sabotage_check_memory(llm: LLM, needs: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(monkeypatch, llm_module, "check_memory", nothing, lambda: refused(llm, needs, monkeypatch))


def test_nothing_is_loaded_before_it_is_said(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: Any, **__: Any) -> None:
        raise AssertionError("loaded before the check")

    free(monkeypatch, 1000)
    for owner, name in ((ReferenceDevice, "pack"), (ReferenceDevice, "allocate"), (Tokenizer, "from_gguf")):
        monkeypatch.setattr(owner, name, loaded)
    with pytest.raises(NotEnoughMemory):
        LLM(llm.file.path)


def test_when_the_weights_alone_do_not_fit(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 1000)
    with pytest.raises(NotEnoughMemory) as raised:
        LLM(llm.file.path)
    assert raised.value.fits == 0
    assert "weights alone" in raised.value.remedy


def test_an_absurd_context_is_refused_by_memory(fixtures: Path) -> None:
    with pytest.raises(NotEnoughMemory):
        LLM(fixtures / "tiny-llama-grouped.gguf", context=10**15)


def test_a_system_that_does_not_tell_is_trusted(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, None)
    assert LLM(llm.file.path).context == 64


def test_a_smaller_kv_dtype_makes_room(
    llm: LLM, needs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed, per_position = needs
    free(monkeypatch, fixed + 32 * per_position)
    with pytest.raises(NotEnoughMemory):
        LLM(llm.file.path)
    assert LLM(llm.file.path, kv_dtype="f16").context == 64
