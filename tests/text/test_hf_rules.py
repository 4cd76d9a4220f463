"""What a Hugging Face folder says about its tokens, and what becomes of text at their borders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hf_support import (
    BORDERS,
    BYTES_ONLY,
    METASPACE,
    Json,
    bytes_json,
    folder_tokenizer,
    pieces_json,
    template_processing,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from text_corpus import NASTY

from ostinato.errors.text import TokenizerFilesMissing, UnsupportedTokenizer
from ostinato.text import Tokenizer


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()  # not a file
    with pytest.raises(TokenizerFilesMissing) as caught:
        Tokenizer.from_hf(tmp_path)
    assert isinstance(caught.value, FileNotFoundError)
    assert "tokenizer.json" in caught.value.remedy


@pytest.mark.parametrize(
    ("post", "config", "added"),
    [
        (None, {}, (False, False)),
        (template_processing(None), {}, (False, False)),
        (template_processing("<|im_start|>"), {}, (True, False)),
        (template_processing("<|im_start|>", "<|im_end|>"), {}, (True, True)),
        (template_processing("<|im_start|>"), {"add_bos_token": False}, (False, False)),
        (template_processing("<|im_start|>"), {"add_bos_token": None}, (True, False)),
        (None, {"add_bos_token": True, "bos_token": "<|im_start|>"}, (True, False)),
        (None, {"add_eos_token": True, "eos_token": {"content": "<|im_end|>"}}, (False, True)),
        (
            {"type": "RobertaProcessing", "sep": ["<|im_end|>", 1], "cls": ["<|im_start|>", 0]},
            {},
            (True, True),
        ),
        (
            {"type": "Sequence", "processors": [BYTES_ONLY, template_processing("<|im_start|>")]},
            {"bos_token": "<|im_start|>"},
            (True, False),
        ),
    ],
)
def test_what_encode_adds(tmp_path: Path, post: Json | None, config: Json, added: tuple[bool, bool]) -> None:
    made = folder_tokenizer(tmp_path, bytes_json(post_processor=post), tokenizer_config=config)
    assert (made.add_bos, made.add_eos) == added
    ids = made.encode("hello")
    assert (0 in ids, 1 in ids) == added
    again = made.encode("<|im_start|>hello<|im_end|>", parse_special=True)
    assert again == made.encode("<|im_start|>hello<|im_end|>", parse_special=True, add_special=False)


def test_names_come_from_the_nearest_file(tmp_path: Path) -> None:
    files = {
        "tokenizer_config": {"bos_token": "<|im_start|>", "eos_token": None},
        "special_tokens_map": {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}},
        "generation_config": {"eos_token_id": [2, 6, 99_999], "bos_token_id": 2},
        "config": {"eos_token_id": 9},
    }
    made = folder_tokenizer(tmp_path, bytes_json(), **files)
    assert (made.bos_id, made.eos_id) == (0, 1)
    assert made.end_ids == {1, 2, 6}
    assert not made.is_control(6)  # a word that ends generation stays a word
    del files["tokenizer_config"], files["special_tokens_map"], files["generation_config"]
    made = folder_tokenizer(tmp_path / "other", bytes_json(), **files)
    assert (made.bos_id, made.eos_id) == (None, 9)
    assert made.end_ids == {1, 2, 9}  # <|im_end|> and <|endoftext|> end whatever a file says


def test_tokens_that_only_the_configuration_names(tmp_path: Path) -> None:
    description = bytes_json(added_tokens=[])
    description["model"]["vocab"]["<bos>"] = 268
    config = {
        "bos_token": "<bos>",
        "eos_token": "hello",
        "added_tokens_decoder": {"270": {"content": "<|more|>", "special": True}},
    }
    made = folder_tokenizer(tmp_path, description, tokenizer_config=config)
    hello = made.encode("hello", add_special=False)
    assert hello == [made.eos_id]  # written like a word, it stays one
    assert not made.is_control(hello[0])
    assert made.is_control(268)
    assert made.encode("<|more|>", parse_special=True, add_special=False) == [270]
    assert 270 not in made.encode("<|more|>")
    assert made.vocab_size == 271


def test_ids_without_a_token(tmp_path: Path) -> None:
    made = folder_tokenizer(tmp_path, bytes_json())
    padded = Tokenizer.from_hf(tmp_path, vocab_size=300)
    assert (made.vocab_size, padded.vocab_size) == (268, 300)
    assert Tokenizer.from_hf(tmp_path, vocab_size=10).vocab_size == 268
    for text in NASTY:
        assert made.encode(text) == padded.encode(text)
    assert padded.decode([299]) == "[PAD299]"
    assert 299 not in padded.encode("[PAD299]", parse_special=True)


def test_files_of_older_days(tmp_path: Path) -> None:
    description = bytes_json(pre_tokenizer={**BYTES_ONLY, "use_regex": True})
    old = json.loads(json.dumps(description))
    del old["model"]["type"], old["pre_tokenizer"]["use_regex"]
    old["model"]["merges"] = [" ".join(merge) for merge in old["model"]["merges"]]
    made, before = folder_tokenizer(tmp_path / "new", description), folder_tokenizer(tmp_path / "old", old)
    for text in BORDERS:
        assert made.encode(text) == before.encode(text)


def test_plain_text_never_becomes_a_marker(tmp_path: Path) -> None:
    description = pieces_json()
    description["model"]["merges"] += [["<s", ">"]]
    made = folder_tokenizer(tmp_path, description)
    assert 1 not in made.encode("<s>", add_special=False)
    assert made.encode("<s>", add_special=False, parse_special=True) == [1]
    newline = made.encode("\n", add_special=False)[-1]
    assert newline not in made.encode("<0x0A>", add_special=False)
    made = folder_tokenizer(tmp_path, bytes_json(), tokenizer_config={"bos_token": "<|im_start|>"})
    for text in ("<|im_start|>", "<|im_start|>hello<|im_end|>"):
        ids = made.encode(text)
        assert not {0, 1, 2} & set(ids)
        assert made.decode(ids) == text


WORD_PIECE = {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a"}


@pytest.mark.parametrize(
    ("description", "named"),
    [
        (bytes_json(model=WORD_PIECE), "WordPiece"),
        (bytes_json(model={"type": "Unigram", "vocab": [["a", 0.0]]}), "Unigram"),
        (bytes_json(model={"vocab": {"a": 0}}), "without a name"),
        (bytes_json(model={**bytes_json()["model"], "end_of_word_suffix": "</w>"}), "end_of_word_suffix"),
        (bytes_json(pre_tokenizer=None), "without byte fallback"),
        (bytes_json(pre_tokenizer={"type": "Whitespace"}), "Whitespace"),
        (
            bytes_json(
                pre_tokenizer={
                    "type": "Sequence",
                    "pretokenizers": [{"type": "BertPreTokenizer"}, BYTES_ONLY],
                }
            ),
            "BertPreTokenizer",
        ),
        (bytes_json(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "Precompiled"),
        (pieces_json(normalizer={"type": "NFKC"}), "NFKC"),
        (pieces_json(normalizer=None), "nothing"),
        (pieces_json(pre_tokenizer=METASPACE), "Metaspace"),
        (pieces_json(normalizer=None, pre_tokenizer={**METASPACE, "replacement": "_"}), "mark"),
        (pieces_json(normalizer=None, pre_tokenizer={**METASPACE, "prepend_scheme": "odd"}), "odd"),
        (pieces_json(model={**pieces_json()["model"], "ignore_merges": True}), "ignores merges"),
        (bytes_json(post_processor={"type": "Odd"}), "Odd"),
        (
            bytes_json(
                post_processor={
                    "type": "Sequence",
                    "processors": [template_processing("<|im_start|>"), template_processing("<|im_end|>")],
                }
            ),
            "several tokens",
        ),
        (
            bytes_json(added_tokens=[{"id": 0, "content": "<|im_start|>", "single_word": True}]),
            "whole words",
        ),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, description: Json, named: str) -> None:
    with pytest.raises(UnsupportedTokenizer) as caught:
        folder_tokenizer(tmp_path, description)
    assert named in str(caught.value)
    assert "byte-level BPE" in caught.value.remedy


def test_a_beginning_that_contradicts_the_name_is_not_supported(tmp_path: Path) -> None:
    description = bytes_json(post_processor=template_processing("<|im_start|>"))
    with pytest.raises(UnsupportedTokenizer):
        folder_tokenizer(tmp_path, description, tokenizer_config={"bos_token": "<|endoftext|>"})


any_text = st.text(st.characters(codec=None), max_size=60)
relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> list[Tokenizer]:
    folder = tmp_path_factory.mktemp("folders")
    metaspace = pieces_json(normalizer=None, pre_tokenizer=METASPACE)
    descriptions = (bytes_json(), pieces_json(), metaspace)
    return [
        folder_tokenizer(folder / str(index), description) for index, description in enumerate(descriptions)
    ]


@given(any_text)
@relaxed
def test_text_survives(made_up: list[Tokenizer], text: str) -> None:
    expected = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    byte_level, prepended, metaspace = made_up
    assert byte_level.decode(byte_level.encode(text)) == expected
    assert b"".join(map(byte_level.token_bytes, byte_level.encode(text))).decode() == expected
    assert prepended.decode(prepended.encode(text)) == expected.replace("▁", " ")
    # It takes a space that a text begins with for its own.
    spaced = expected.replace("▁", " ")
    assert metaspace.decode(metaspace.encode(text)) == spaced.removeprefix(" ")


@given(st.lists(st.integers(0, 250), max_size=40), st.booleans(), st.booleans())
@relaxed
def test_stream_equals_whole(
    made_up: list[Tokenizer], ids: list[int], skip: bool, continuation: bool
) -> None:
    for made in made_up:
        decoder = made.decoder(skip_special=skip, continuation=continuation)
        text = "".join([*map(decoder.push, ids), decoder.finish()])
        assert text == made.decode(ids, skip_special=skip, continuation=continuation)
