"""Ids against those of llama.cpp and transformers; `make_fixtures.py` says where the numbers come from."""

from __future__ import annotations

from typing import Any

import pytest
from text_corpus import NASTY
from text_support import fixture, tokenizer

from ostinato.text import Tokenizer
from ostinato.text.pretokenizers import PRE_TOKENIZERS

VOCABULARIES = ("deepseek-coder", "gpt-2", "llama-bpe", "llama-spm", "phi-3")


@pytest.mark.parametrize("name", VOCABULARIES)
def test_llama_cpp_vocabulary_tests(name: str) -> None:
    cases = fixture(f"vocab-{name}")["cases"]
    assert len(cases) == 47
    made = tokenizer(name)
    for text, ids in cases:
        assert made.encode(text, add_special=False) == ids, text


@pytest.mark.parametrize("name", VOCABULARIES)
def test_nasty_texts_survive(name: str) -> None:
    made = tokenizer(name)
    for text in NASTY:
        expected = text.replace("▁", " ") if made.kind == "llama" else text
        assert made.decode(made.encode(text)) == expected


@pytest.mark.parametrize("pre", sorted(fixture("llamacpp-pre")))
def test_every_pre_tokenizer_cuts_like_llama_cpp(pre: str) -> None:
    metadata = {**fixture("vocab-gpt-2")["metadata"], "tokenizer.ggml.pre": pre}
    made = Tokenizer.from_gguf(metadata)
    for text, ids in zip(NASTY, fixture("llamacpp-pre")[pre], strict=True):
        assert made.encode(text, add_special=False) == ids, text


def test_one_name_of_every_pre_tokenizer_is_compared() -> None:
    compared = {PRE_TOKENIZERS[name] for name in fixture("llamacpp-pre")}
    assert compared == set(PRE_TOKENIZERS.values())


def test_sentencepiece_merges_like_llama_cpp() -> None:
    made = tokenizer("llama-spm")
    for text, (plain, parsed) in zip(NASTY, fixture("llamacpp-spm"), strict=True):
        assert made.encode(text, add_special=False) == plain, text
        assert made.encode(text, add_special=False, parse_special=True) == parsed, text


@pytest.mark.model
def test_smollm2_like_llama_cpp_and_transformers(smollm2_metadata: dict[str, Any]) -> None:
    made = Tokenizer.from_gguf(smollm2_metadata)
    references = zip(NASTY, fixture("llamacpp-smollm2"), fixture("transformers-smollm2"), strict=True)
    for text, (plain, parsed), transformers in references:
        assert made.encode(text) == plain, text
        assert made.encode(text, parse_special=True) == parsed == transformers, text
        assert made.decode(plain) == text
