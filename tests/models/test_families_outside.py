"""A family that lives outside the tree: as little as a family may have, and what it then can't do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rewrite import rewrite

from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.want import All
from ostinato.engine.convert import convert
from ostinato.engine.llm import LLM
from ostinato.errors import FamilyIncomplete, UnknownArchitecture
from ostinato.formats.gguf import GgufFile
from ostinato.formats.safetensors import Checkpoint
from ostinato.models import families, llama
from ostinato.models.contract import Family
from ostinato.models.loader import load_model, model_from_checkpoint, model_from_gguf
from ostinato.runtime.context import InferenceContext

MINIMAL = Family(
    name="outside",
    gguf_architectures=("outside",),
    from_gguf=llama.Config.from_gguf,
    weight_specs=llama.weight_specs,
    forward=llama.forward,
    head=llama.head,
)


@pytest.fixture
def outside(fixtures: Path, tmp_path: Path) -> Path:
    return rewrite(
        fixtures / "tiny-llama-grouped.gguf",
        tmp_path / "outside.gguf",
        metadata={"general.architecture": "outside"},
    )


def test_it_is_known_where_it_is_given(outside: Path, fixtures: Path, context: InferenceContext) -> None:
    with pytest.raises(UnknownArchitecture, match="'outside'; known: llama"):
        load_model(outside)
    results = []
    for path in (outside, fixtures / "tiny-llama-grouped.gguf"):
        model = load_model(path, families=[MINIMAL])
        cache = KvCache.allocate(model, context, 8)
        results.append(forward_with_kv_context(model, [1, 2, 3], cache, context, want=All()))
    np.testing.assert_array_equal(*results)
    with GgufFile.open(outside) as file:
        assert model_from_gguf(file, families=(MINIMAL,)).family is MINIMAL
    with pytest.raises(UnknownArchitecture):  # and nowhere else
        load_model(outside)
    assert MINIMAL not in families.FAMILIES


def test_a_whole_engine_over_it(outside: Path, fixtures: Path) -> None:
    texts = [
        LLM(path, families=[MINIMAL]).generate("hi", max_tokens=4)
        for path in (outside, fixtures / "tiny-llama-grouped.gguf")
    ]
    assert all(texts)


def test_one_that_is_given_comes_before_a_built_in_one(fixtures: Path) -> None:
    mine = Family(**{**vars(MINIMAL), "gguf_architectures": ("llama",)})
    assert load_model(fixtures / "tiny-llama-grouped.gguf", families=[mine]).family is mine
    assert load_model(fixtures / "tiny-llama-grouped.gguf").family is llama.LLAMA


def test_without_from_hf_it_reads_no_folder(fixtures: Path) -> None:
    folder = fixtures / "tiny-llama-grouped"
    mine = Family(**{**vars(MINIMAL), "hf_architectures": ("LlamaForCausalLM",)})
    with pytest.raises(FamilyIncomplete, match=r"outside can't be read from a .* folder: .* from_hf"):
        load_model(folder, families=[mine])
    with Checkpoint.open(folder) as checkpoint:
        assert model_from_checkpoint(checkpoint, families=[MINIMAL]).family is llama.LLAMA


def test_without_to_gguf_it_is_not_written(
    fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Family(**{**vars(llama.LLAMA), "name": "mine", "to_gguf": None})
    monkeypatch.setattr("ostinato.models.loader.FAMILIES", (mine,))
    with pytest.raises(
        FamilyIncomplete, match=r"mine can't be written as a GGUF file: it has no to_gguf"
    ) as raised:
        convert(fixtures / "tiny-llama-grouped", tmp_path / "out.gguf")
    assert isinstance(raised.value, NotImplementedError)
    assert not list(tmp_path.iterdir())
