"""Ids of Hugging Face folders against GGUF's, and against `tokenizers`, transformers and SentencePiece.

`make_fixtures.py` says where the committed numbers come from; `tokenizers` itself is asked here and now.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hf_support import (
    Json,
    byte_level_json,
    config_of,
    model_file,
    sentencepiece_json,
    write_folder,
)
from text_corpus import NASTY
from text_support import fixture, tokenizer

from ostinato.errors.text import TokenizerNotConvertible
from ostinato.text import Tokenizer
from ostinato.text.huggingface import to_gguf
from ostinato.text.huggingface.to_gguf import to_gguf_metadata

BYTE_LEVEL = ("deepseek-coder", "gpt-2", "llama-bpe")
SENTENCEPIECE = ("llama-spm", "phi-3")


def metadata_of(name: str) -> Json:
    return fixture(f"vocab-{name}")["metadata"]


def ids(made: Tokenizer, text: str) -> list[int]:
    return made.encode(text, add_special=False, parse_special=True)


def check_same(made: Tokenizer, other: Tokenizer) -> None:
    for text in NASTY:
        assert ids(made, text) == ids(other, text), text
        plain = made.encode(text, add_special=False)
        assert plain == other.encode(text, add_special=False), text
        assert made.decode(plain) == other.decode(plain)
    assert [made.token_bytes(id) for id in range(0, made.vocab_size, 7)] == [
        other.token_bytes(id) for id in range(0, made.vocab_size, 7)
    ]


def check_library(made: Tokenizer, description: Json) -> None:
    library = tokenizers.Tokenizer.from_str(json.dumps(description))
    for text in NASTY:
        assert ids(made, text) == library.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_byte_level(tmp_path: Path, name: str) -> None:
    metadata = metadata_of(name)
    description = byte_level_json(metadata)
    write_folder(tmp_path, tokenizer=description, tokenizer_config=config_of(metadata))
    made = Tokenizer.from_hf(tmp_path)
    assert (made.kind, made.vocab_size) == ("gpt2", len(metadata["tokenizer.ggml.tokens"]))
    check_same(made, tokenizer(name))
    assert (made.bos_id, made.eos_id) == (tokenizer(name).bos_id, tokenizer(name).eos_id)
    assert made.end_ids == tokenizer(name).end_ids
    check_library(made, description)
    converted = to_gguf_metadata(tmp_path)
    assert converted["tokenizer.ggml.pre"] == name
    check_same(made, Tokenizer.from_gguf(converted))


@pytest.mark.parametrize("metaspace", [False, True])
@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_sentencepiece(tmp_path: Path, name: str, metaspace: bool) -> None:
    metadata = metadata_of(name)
    description = sentencepiece_json(metadata, metaspace=metaspace)
    if name == "phi-3":
        for token in description["added_tokens"]:
            token["rstrip"] = token["content"].startswith("<|") and token["content"] != "<|endoftext|>"
            token["rstrip"] |= token["content"] == "</s>"
    write_folder(tmp_path, tokenizer=description, tokenizer_config=config_of(metadata))
    made = Tokenizer.from_hf(tmp_path)
    check_library(made, description)
    if not metaspace:  # which leaves out the space before a text that begins with one
        check_same(made, tokenizer(name))
    converted = Tokenizer.from_gguf(to_gguf_metadata(tmp_path))
    check_same(made, converted)
    assert converted.end_ids == made.end_ids


def test_folders_that_transformers_wrote(tmp_path: Path) -> None:
    for name, golden in fixture("transformers-folders").items():
        metadata = metadata_of(name)
        made_up = byte_level_json(metadata) if name == "gpt-2" else sentencepiece_json(metadata, by_id=True)
        model: Any = made_up["model"]
        description = golden["description"]
        description = {**description, "model": {**model, **description["model"]}}
        made = Tokenizer.from_hf(write_folder(tmp_path / name, tokenizer=description))
        for text, expected in zip(NASTY, golden["ids"], strict=True):
            assert ids(made, text) == expected, text


def test_sentencepiece_model_file(tmp_path: Path) -> None:
    metadata = metadata_of("llama-spm")
    (tmp_path / "tokenizer.model").write_bytes(model_file(metadata))
    made = Tokenizer.from_hf(tmp_path)
    for text, expected in zip(NASTY, fixture("sentencepiece-llama-spm"), strict=True):
        assert made.encode(text, add_special=False) == expected, text
    check_same(made, tokenizer("llama-spm"))
    check_same(made, Tokenizer.from_gguf(to_gguf_metadata(tmp_path)))
    assert (made.bos_id, made.eos_id, made.add_bos, made.add_eos) == (1, 2, True, False)


@pytest.mark.model
def test_smollm2(tmp_path: Path, smollm2_metadata: Json) -> None:
    metadata = {key: value for key, value in smollm2_metadata.items() if key.startswith("tokenizer.ggml.")}
    description = byte_level_json(metadata)
    # As the model's own tokenizer.json has it.
    cuts = [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ]
    description["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": cuts}
    write_folder(tmp_path, tokenizer=description, tokenizer_config=config_of(metadata))
    made, original = Tokenizer.from_hf(tmp_path), Tokenizer.from_gguf(metadata)
    check_same(made, original)
    assert (made.bos_id, made.eos_id, made.end_ids, made.add_bos) == (
        original.bos_id,
        original.eos_id,
        original.end_ids,
        original.add_bos,
    )
    for text, expected in zip(NASTY, fixture("transformers-smollm2"), strict=True):
        assert ids(made, text) == expected, text
    converted = to_gguf_metadata(tmp_path)
    assert converted["tokenizer.ggml.pre"] == "smollm"
    check_same(Tokenizer.from_gguf(converted), original)


def test_sabotage_same_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion with a wrong name for its cuts is caught by what it does."""
    write_folder(tmp_path, tokenizer=byte_level_json(metadata_of("gpt-2")))
    monkeypatch.setattr(to_gguf, "pre_name", lambda *_, **__: "smollm")
    with pytest.raises(TokenizerNotConvertible):
        to_gguf_metadata(tmp_path)
    monkeypatch.setattr(to_gguf, "check_same_ids", lambda *_: None)
    with pytest.raises(AssertionError):
        check_same(Tokenizer.from_gguf(to_gguf_metadata(tmp_path)), tokenizer("gpt-2"))
