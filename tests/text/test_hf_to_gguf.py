"""A folder's tokenizer as GGUF metadata: the same ids, or a refusal."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hf_support import (
    BORDERS,
    BYTES_ONLY,
    METASPACE,
    Json,
    byte_level_json,
    sentencepiece_json,
    split,
    template_processing,
    write_folder,
)
from text_support import bytes_metadata, sentencepiece_metadata

from ostinato.errors.text import TokenizerFilesMissing, TokenizerNotConvertible
from ostinato.text import Tokenizer
from ostinato.text.huggingface import scores, to_gguf
from ostinato.text.huggingface.to_gguf import to_gguf_metadata
from ostinato.text.pretokenizers import PRE_TOKENIZERS
from sabotage import goes_red, nothing

BYTES = byte_level_json(bytes_metadata())
PIECES = sentencepiece_json(sentencepiece_metadata())
_GPT2 = PRE_TOKENIZERS["gpt-2"].patterns[0]


def check_same(folder: Path, **options: Any) -> Json:
    metadata = to_gguf_metadata(folder, **options)
    made, converted = Tokenizer.from_hf(folder, **options), Tokenizer.from_gguf(metadata)
    for text in BORDERS:
        for parse_special in (False, True):
            ids = made.encode(text, parse_special=parse_special)
            assert converted.encode(text, parse_special=parse_special) == ids, text
            assert converted.decode(ids) == made.decode(ids)
    for name in ("kind", "bos_id", "eos_id", "end_ids", "add_bos", "add_eos", "vocab_size"):
        assert getattr(made, name) == getattr(converted, name), name
    assert [made.token_bytes(id) for id in range(made.vocab_size)] == [
        converted.token_bytes(id) for id in range(made.vocab_size)
    ]
    return metadata


@pytest.mark.parametrize(
    ("changes", "files"),
    [
        ({}, {}),
        ({"post_processor": template_processing("<|im_start|>", "<|im_end|>")}, {}),
        ({"normalizer": {"type": "NFC"}}, {"generation_config": {"eos_token_id": [1, 2, 7, 8, 9, 10]}}),
        ({}, {"tokenizer_config": {"bos_token": "<|im_start|>", "chat_template": "{{ messages }}"}}),
    ],
)
def test_byte_level(tmp_path: Path, changes: Json, files: Json) -> None:
    description = copy.deepcopy({**BYTES, **changes})
    description["added_tokens"][1]["rstrip"] = True
    description["added_tokens"][2]["lstrip"] = True
    metadata = check_same(write_folder(tmp_path, tokenizer=description, **files))
    assert metadata["tokenizer.ggml.pre"] == "gpt-2"
    assert ("tokenizer.chat_template" in metadata) == ("tokenizer_config" in files)
    assert len(check_same(tmp_path, vocab_size=300)["tokenizer.ggml.tokens"]) == 300


@pytest.mark.parametrize("scheme", ["always", "first", "never", None])
def test_sentencepiece(tmp_path: Path, scheme: str | None) -> None:
    description = PIECES
    if scheme is not None:
        description = {
            **PIECES,
            "normalizer": None,
            "pre_tokenizer": {**METASPACE, "prepend_scheme": scheme},
        }
    check_same(write_folder(tmp_path, tokenizer=description))


ISOLATED = {name: PRE_TOKENIZERS[name] for name in ("smollm", "llama-bpe", "qwen2", "deepseek-v3", "gpt-4o")}
DIGITS = {"type": "Digits", "individual_digits": True}
WITH_WORDS = {**BYTES_ONLY, "use_regex": True}


@pytest.mark.parametrize(
    ("name", "cuts", "ignore_merges"),
    [
        *(
            (name, [*map(split, pre.patterns), BYTES_ONLY], pre.ignore_merges)
            for name, pre in ISOLATED.items()
        ),
        ("gpt-2", [WITH_WORDS], False),
        ("smollm", [DIGITS, WITH_WORDS], False),
        (
            "gpt-4o",
            [
                {**split(ISOLATED["gpt-4o"].patterns[0]), "behavior": "Removed", "invert": True},
                BYTES_ONLY,
            ],
            False,
        ),
        ("dbrx", [split(ISOLATED["llama-bpe"].patterns[0]), BYTES_ONLY], False),
        ("gpt-2", [WITH_WORDS], True),  # where merges make every token anyway
    ],
)
def test_names(tmp_path: Path, name: str, cuts: list[Json], ignore_merges: bool) -> None:
    description = copy.deepcopy(BYTES)
    description["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": cuts}
    description["model"]["ignore_merges"] = ignore_merges
    assert check_same(write_folder(tmp_path, tokenizer=description))["tokenizer.ggml.pre"] == name


def unmerged() -> Json:
    description = copy.deepcopy(BYTES)
    description["pre_tokenizer"] = WITH_WORDS
    description["model"]["ignore_merges"] = True
    description["model"]["vocab"]["whole"] = 268
    return description


def unordered() -> Json:
    description = copy.deepcopy(PIECES)
    description["model"]["merges"].pop()
    return description


@pytest.mark.parametrize(
    ("description", "part"),
    [
        ({**BYTES, "pre_tokenizer": {**BYTES_ONLY, "add_prefix_space": True}}, "cutting"),
        ({**BYTES, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES_ONLY, DIGITS]}}, "cutting"),
        (
            {**BYTES, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split("x"), BYTES_ONLY]}},
            "steps",
        ),
        (
            {
                **BYTES,
                "pre_tokenizer": {
                    "type": "Sequence",
                    "pretokenizers": [{**split(_GPT2), "behavior": "MergedWithNext"}, BYTES_ONLY],
                },
            },
            "Split",
        ),
        ({**BYTES, "normalizer": {"type": "Lowercase"}}, "Lowercase"),
        (unmerged(), "merged differently"),
        (unordered(), "merges"),
        ({**PIECES, "normalizer": None, "pre_tokenizer": {**METASPACE, "split": True}}, "across words"),
    ],
)
def test_what_gguf_has_no_words_for(tmp_path: Path, description: Json, part: str) -> None:
    write_folder(tmp_path, tokenizer=description)
    Tokenizer.from_hf(tmp_path)
    with pytest.raises(TokenizerNotConvertible) as caught:
        to_gguf_metadata(tmp_path)
    assert part in str(caught.value)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(TokenizerFilesMissing):
        to_gguf_metadata(tmp_path)


def test_sabotage_scores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_folder(tmp_path, tokenizer=unordered())
    monkeypatch.setattr(to_gguf, "check_same_ids", nothing)

    def check() -> None:
        with pytest.raises(TokenizerNotConvertible):
            to_gguf_metadata(tmp_path)

    goes_red(monkeypatch, scores, "check_made_by_scores", nothing, check)
