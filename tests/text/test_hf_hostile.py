"""Model folders from strangers: every outcome is a tokenizer or an error that says what is wrong."""

from __future__ import annotations

import copy
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hf_support import (
    BYTES_ONLY,
    Json,
    byte_level_json,
    sentencepiece_json,
    split,
    template_processing,
    write_folder,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from text_support import bytes_metadata, sentencepiece_metadata

from ostinato.errors import OstinatoError
from ostinato.errors.formats import ModelFileUnreadable
from ostinato.errors.text import TextNotEncodable, TokenizerFormatError, UnsupportedTokenizer
from ostinato.text import Tokenizer
from ostinato.text.huggingface import added, cutting, describe, folder, load, model
from sabotage import goes_red, nothing

BYTES = byte_level_json(bytes_metadata())
PIECES = sentencepiece_json(sentencepiece_metadata())


def changed(path: str, value: Any, description: Json = BYTES) -> Json:
    """A copy with the value at a dotted path."""
    result = copy.deepcopy(description)
    *way, last = path.split(".")
    place: Any = result
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    place[int(last) if last.isdigit() else last] = value
    return result


def refused(directory: Path, **files: Any) -> TokenizerFormatError:
    with pytest.raises(TokenizerFormatError) as caught:
        Tokenizer.from_hf(write_folder(directory, **files))
    return caught.value


FIELDS = [
    ("model", None, "model"),
    ("model", [], "model"),
    ("model.type", 3, "model.type"),
    ("model.vocab", [], "model.vocab"),
    ("model.vocab", {}, "model.merges"),
    ("model.vocab.a", "x", "model.vocab['a']"),
    ("model.vocab.a", True, "model.vocab['a']"),
    ("model.vocab.a", -1, "model.vocab['a']"),
    ("model.vocab.a", 2**32 - 1, "model.vocab['a']"),
    ("model.vocab.a", 5, "model.vocab"),
    ("model.vocab.a", 4_000_000, "ids"),
    ("model.merges", None, "model.merges"),
    ("model.merges", ["a b c"], "model.merges"),
    ("model.merges", [["a"]], "model.merges"),
    ("model.merges", [["a", 1]], "model.merges"),
    ("model.merges", [["a", "nowhere"]], "model.merges"),
    ("model.ignore_merges", "yes", "model.ignore_merges"),
    ("model.unk_token", 7, "model.unk_token"),
    ("added_tokens", {}, "added_tokens"),
    ("added_tokens.0", 1, "added_tokens[0]"),
    ("added_tokens.0.content", None, "added_tokens[0].content"),
    ("added_tokens.0.id", "0", "added_tokens[0]"),
    ("added_tokens.0.id", 7, "the added token 7"),
    ("added_tokens.0.id", 300, "the id of '<|im_start|>'"),
    ("added_tokens.0.id", 2, "added_tokens[2]"),
    ("added_tokens.0.special", 1, "added_tokens[0].special"),
    ("normalizer", "NFC", "normalizer"),
    ("normalizer", {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 65}, "content"),
    ("normalizer", {"type": "Replace", "pattern": {"String": "a"}}, "the file"),
    ("pre_tokenizer", 1, "pre_tokenizer"),
    ("pre_tokenizer.pretokenizers", {}, "pre_tokenizer.pretokenizers"),
    ("pre_tokenizer.pretokenizers", [BYTES_ONLY] * 65, "pre_tokenizer"),
    ("pre_tokenizer.pretokenizers.0", split("("), "the file"),
    ("pre_tokenizer.pretokenizers.0", split("(" * 8000), "the file"),
    ("pre_tokenizer.pretokenizers.0", split("a" * 20_000), "Regex"),
    ("pre_tokenizer.pretokenizers.0", {"type": "Split"}, "the file"),
    ("pre_tokenizer.pretokenizers.1", {"type": "ByteLevel", "use_regex": 3}, "the file"),
    ("post_processor", [], "post_processor"),
    ("post_processor", template_processing("<nowhere>"), "post_processor"),
    ("post_processor", {"type": "TemplateProcessing", "single": [{}]}, "post_processor.single"),
    ("post_processor", {"type": "RobertaProcessing"}, "post_processor"),
]


@pytest.mark.parametrize(("path", "value", "key"), FIELDS)
def test_broken_fields_are_named(tmp_path: Path, path: str, value: Any, key: str) -> None:
    error = refused(tmp_path, tokenizer=changed(path, value))
    assert (error.key, error.file) == (key, "tokenizer.json")
    assert "tokenizer.json" in str(error)
    assert "another copy" in error.remedy
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff\xfe{}",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"9" * 10_000,
        json.dumps(BYTES).encode()[:-1],
    ],
)
def test_broken_json(tmp_path: Path, data: bytes) -> None:
    assert refused(tmp_path, tokenizer=data).file == "tokenizer.json"
    error = refused(tmp_path, tokenizer=BYTES, tokenizer_config=data)
    assert error.file == "tokenizer_config.json"


@pytest.mark.parametrize(
    ("file", "content", "key"),
    [
        ("tokenizer_config", {"bos_token": 5}, "bos_token"),
        ("tokenizer_config", {"add_bos_token": "yes"}, "add_bos_token"),
        ("tokenizer_config", {"added_tokens_decoder": []}, "added_tokens_decoder"),
        ("tokenizer_config", {"added_tokens_decoder": {"x": {"content": "a"}}}, "added_tokens_decoder['x']"),
        ("tokenizer_config", {"added_tokens_decoder": {"0": {"content": "a"}}}, "added_tokens_decoder['0']"),
        ("special_tokens_map", {"eos_token": {"content": []}}, "eos_token"),
        ("generation_config", {"eos_token_id": "x"}, "eos_token_id"),
        ("generation_config", {"eos_token_id": [1, None]}, "eos_token_id"),
        ("config", {"bos_token_id": True}, "bos_token_id"),
    ],
)
def test_broken_neighbours_are_named(tmp_path: Path, file: str, content: Json, key: str) -> None:
    error = refused(tmp_path, tokenizer=BYTES, **{file: content})
    assert (error.key, error.file) == (key, f"{file}.json")


def test_unreadable_and_odd_files(tmp_path: Path) -> None:
    write_folder(tmp_path, tokenizer=BYTES)
    os.mkfifo(tmp_path / "tokenizer_config.json")  # must not be waited for
    assert Tokenizer.from_hf(tmp_path).encode("hello")
    if os.geteuid():
        (tmp_path / "tokenizer.json").chmod(0)
        with pytest.raises(ModelFileUnreadable):
            Tokenizer.from_hf(tmp_path)


def test_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MAX_FILE", 1000)

    def check() -> None:
        assert refused(tmp_path, tokenizer=BYTES).expected == "at most 1000 bytes"

    goes_red(monkeypatch, folder, "check_size", nothing, check)


def test_a_rule_that_explodes(tmp_path: Path) -> None:
    evil = {"type": "Sequence", "pretokenizers": [split("(?:a|a)*$"), BYTES_ONLY]}
    made = Tokenizer.from_hf(write_folder(tmp_path, tokenizer=changed("pre_tokenizer", evil)))
    assert made.encode("aaa")
    with pytest.raises(TextNotEncodable) as caught:
        made.encode("a" * 100 + "b")
    assert caught.value.length == 101
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert made.encode("aaa")  # and it still works


class TestSabotage:
    """Each guard disabled, its test red."""

    @pytest.fixture(autouse=True)
    def _here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = tmp_path, monkeypatch

    def goes_red(self, owner: object, guard: str, path: str, value: Any, replacement: Any = nothing) -> None:
        def check() -> None:
            with pytest.raises((TokenizerFormatError, UnsupportedTokenizer)):
                Tokenizer.from_hf(write_folder(self.folder, tokenizer=changed(path, value)))

        goes_red(self.monkeypatch, owner, guard, replacement, check)

    def test_vocab(self) -> None:
        self.goes_red(model, "check_vocab", "model.vocab.a", 5)

    def test_id(self) -> None:
        last = [{"id": 4_200_000, "content": "xyz"}]
        self.monkeypatch.setattr(describe, "check_density", nothing)
        self.goes_red(added, "check_id", "added_tokens", last, lambda id, *_: 270)

    def test_density(self) -> None:
        self.goes_red(describe, "check_density", "added_tokens", [{"id": 90_000, "content": "xyz"}])

    def test_merges(self) -> None:
        self.goes_red(model, "check_merges", "model.merges", [["a", "nowhere"]])

    def test_agreement(self) -> None:
        self.goes_red(added, "check_agreement", "added_tokens.0.id", 7)

    def test_kind(self) -> None:
        flags = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
        lossy = {"type": "BertNormalizer", **dict.fromkeys(flags, True)}
        self.goes_red(cutting, "check_kind", "normalizer", lossy)

    def test_length(self) -> None:
        huge = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
        self.goes_red(cutting, "check_length", "normalizer", huge)

    def test_byte_level(self) -> None:
        huge = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
        self.goes_red(cutting, "check_byte_level", "normalizer", huge)

    def test_failure_while_building(self) -> None:
        bad = changed("pre_tokenizer.pretokenizers.0", split("("))

        def check() -> None:
            with pytest.raises(OstinatoError):
                Tokenizer.from_hf(write_folder(self.folder, tokenizer=bad))

        self.monkeypatch.setattr(load, "is_failure", lambda _: False)
        goes_red(
            self.monkeypatch, cutting, "is_failure", lambda _: False, check, expect=Exception
        )  # the tokenizers library raises just that

    def test_panic(self) -> None:
        from ostinato.text import parts

        evil = {"type": "Sequence", "pretokenizers": [split("(?:a|a)*$"), BYTES_ONLY]}
        made = Tokenizer.from_hf(write_folder(self.folder, tokenizer=changed("pre_tokenizer", evil)))

        def check() -> None:
            try:
                made.encode("a" * 100 + "b")
            except TextNotEncodable:
                return
            except BaseException as error:
                raise AssertionError("a panic came through") from error
            raise AssertionError("nothing happened")

        goes_red(self.monkeypatch, parts, "is_panic", lambda _: False, check)


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, long containers by their first entries."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key in list(value)[:8]:
            found += spots(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(len(value), 3)):
            found += spots(value[index], (*path, index))
    return found


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 300)
    | st.sampled_from([2**32, -1, 1.5, "", "▁", "Sequence", "ByteLevel", "NFC", "Metaspace", "a", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "id", "content", "pattern", "Regex", "a"]), inner, max_size=3
        )
    ),
    max_leaves=5,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_mutations(tmp_path: Path, data: st.DataObject) -> None:
    description = copy.deepcopy(data.draw(st.sampled_from([BYTES, PIECES]), "file"))
    *way, last = data.draw(st.sampled_from(spots(description)), "place")
    place: Any = description
    for step in way:
        place = place[step]
    if isinstance(place, dict) and data.draw(st.booleans(), "delete"):
        del place[last]
    else:
        place[last] = data.draw(anything, "value")
    write_folder(tmp_path, tokenizer=description)
    try:
        made = Tokenizer.from_hf(tmp_path)
    except (TokenizerFormatError, UnsupportedTokenizer):
        return
    for text in ("hello <|im_end|>\n", "", "\x00 é😀", "<s> ab"):
        for parse_special in (False, True):
            ids = made.encode(text, parse_special=parse_special)
            made.decode(ids)
    for id in range(made.vocab_size):
        made.token_bytes(id)
