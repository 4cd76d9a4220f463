"""A SentencePiece tokenizer.model in a folder: its added tokens, and broken or foreign ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hf_support import field, model_file, write_folder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from text_support import sentencepiece_metadata

from ostinato.errors.text import TokenizerFormatError, UnsupportedTokenizer
from ostinato.text import Tokenizer
from ostinato.text.huggingface import sentencepiece_model, wire
from sabotage import goes_red, nothing


def spm(directory: Path, data: bytes, **files: Any) -> Tokenizer:
    write_folder(directory, **files)
    (directory / "tokenizer.model").write_bytes(data)
    return Tokenizer.from_hf(directory)


MODEL = model_file(sentencepiece_metadata())


def test_added_tokens_of_a_model_file(tmp_path: Path) -> None:
    made = spm(
        tmp_path,
        MODEL,
        added_tokens={"<|end|>": 269, "<more>": 271},
        tokenizer_config={
            "eos_token": "<|end|>",
            "add_bos_token": False,
            "added_tokens_decoder": {"269": {"content": "<|end|>", "special": True, "rstrip": True}},
        },
        generation_config={"eos_token_id": [269, 2]},
    )
    assert (made.vocab_size, made.add_bos, made.eos_id, made.end_ids) == (272, False, 269, {269, 2})
    assert made.encode("<|end|>  ab", parse_special=True) == [269, *made.encode("ab")]
    assert made.encode("<more>") == [271]
    assert Tokenizer.from_hf(tmp_path, vocab_size=280).vocab_size == 280


@pytest.mark.parametrize(
    ("trainer", "normalizer", "named"),
    [
        (field(3, 1), None, "Unigram"),
        (b"", None, "Unigram"),
        (field(3, 9), None, "unknown kind"),
        (field(3, 2) + field(24, 1), None, "after words"),
        (None, b"", "normalises"),
        (None, field(4, 0) + field(2, b"map"), "normalises"),
        (None, field(4, 0) + field(5, 0), "'▁'"),
    ],
)
def test_model_files_of_other_kinds(
    tmp_path: Path, trainer: bytes | None, normalizer: bytes | None, named: str
) -> None:
    with pytest.raises(UnsupportedTokenizer) as caught:
        spm(tmp_path, model_file(sentencepiece_metadata(), trainer=trainer, normalizer=normalizer))
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 20,
        b"\x0b",
        b"\x0a\xff",
        MODEL[:-1],
        MODEL[:1000],
        field(1, 5),
        field(1, field(1, 5)),
        field(1, field(2, b"12")),
        field(1, field(3, b"1")),
    ],
)
def test_broken_model_files(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(TokenizerFormatError) as caught:
        spm(tmp_path, data)
    assert caught.value.file == "tokenizer.model"


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, len(MODEL) - 1), st.binary(max_size=3), st.booleans())
def test_mutated_model_files(tmp_path: Path, place: int, data: bytes, at_the_end: bool) -> None:
    place = len(MODEL) - 1 - place % 60 if at_the_end else place
    try:
        made = spm(tmp_path, MODEL[:place] + data + MODEL[place + len(data) :])
    except (TokenizerFormatError, UnsupportedTokenizer):
        return
    made.decode(made.encode("<s> ab\n", parse_special=True))


def test_sabotage_of_model_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_end() -> None:
        with pytest.raises(TokenizerFormatError):
            spm(tmp_path, MODEL[:-1])

    def check_kind() -> None:
        with pytest.raises(UnsupportedTokenizer):
            spm(tmp_path, model_file(sentencepiece_metadata(), trainer=b""))

    def check_density() -> None:
        with pytest.raises(TokenizerFormatError):
            spm(tmp_path, MODEL, added_tokens={"<x>": 90_000})

    goes_red(monkeypatch, wire, "check_room", nothing, check_end, expect=IndexError)
    goes_red(monkeypatch, sentencepiece_model, "check_kind", nothing, check_kind)
    goes_red(monkeypatch, sentencepiece_model, "check_density", nothing, check_density)
