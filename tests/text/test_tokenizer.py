"""The tokenizer's own rules: what is a token in which text, and what becomes of broken metadata."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_support import bytes_metadata, sentencepiece_metadata, tokenizer

from ostinato.errors.text import (
    TokenizerFormatError,
    UnknownToken,
    UnsupportedPreTokenizer,
    UnsupportedTokenizer,
)
from ostinato.text import Tokenizer, sentencepiece
from ostinato.text.special import SpecialTokens
from ostinato.text.vocabulary import Vocabulary
from sabotage import goes_red, nothing

BYTES = Tokenizer.from_gguf(bytes_metadata())
PIECES = Tokenizer.from_gguf(sentencepiece_metadata())
LONG = [*sentencepiece_metadata()["tokenizer.ggml.tokens"][:-1], "a" * 2000]
any_text = st.text(st.characters(codec=None), max_size=60)  # lone surrogates too


def test_importing_loads_no_heavy_library() -> None:
    code = "import sys, ostinato.text; print(sorted({'tokenizers', 'jinja2'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_attributes() -> None:
    assert (BYTES.kind, BYTES.bos_id, BYTES.eos_id, BYTES.add_bos, BYTES.add_eos) == (
        "gpt2",
        0,
        1,
        False,
        False,
    )
    assert BYTES.end_ids == {1, 2}  # <|im_end|>, <|endoftext|>
    assert BYTES.vocab_size == 4 + 256 + 8
    assert (PIECES.kind, PIECES.bos_id, PIECES.eos_id) == ("llama", 1, 2)
    assert (PIECES.add_bos, PIECES.add_eos) == (True, False)
    assert PIECES.end_ids == {2}


@pytest.mark.parametrize(
    ("metadata", "add_bos"),
    [
        (bytes_metadata(), False),
        (bytes_metadata(pre="llama-bpe"), True),
        (bytes_metadata(pre="tekken"), True),
        (bytes_metadata(pre="llama-bpe", add_bos_token=False), False),
        (bytes_metadata(add_bos_token=True), True),
        (bytes_metadata(add_bos_token=True, bos_token_id=None), False),
        (sentencepiece_metadata(), True),
        (sentencepiece_metadata(add_bos_token=False), False),
    ],
)
def test_defaults_of_add_bos(metadata: dict[str, Any], add_bos: bool) -> None:
    assert Tokenizer.from_gguf(metadata).add_bos is add_bos


def test_named_end_tokens_end_whatever_their_type() -> None:
    tokens = [*bytes_metadata()["tokenizer.ggml.tokens"], "<end_of_turn>", "<|eot_id|>", "</s>", "over"]
    types = [3, 3, 3, 4, *[1] * 264, 1, 4, 1, 1]
    made = Tokenizer.from_gguf(bytes_metadata(tokens=tokens, token_type=types, eom_token_id=271))
    # "</s>" typed as a normal token is text (Gemma's is HTML); an id in the metadata counts always.
    assert made.end_ids == {1, 2, 268, 269, 271}


def test_harmony_message_end_is_not_an_end() -> None:
    extra = ["<|end|>", "<|return|>", "<|call|>"]
    tokens = [*bytes_metadata()["tokenizer.ggml.tokens"], *extra]
    types = [3, 3, 3, 4, *[1] * 264, 3, 3, 3]
    made = Tokenizer.from_gguf(bytes_metadata(tokens=tokens, token_type=types))
    assert made.end_ids == {1, 2, 269, 270}


def test_markers_are_tokens_only_on_request() -> None:
    text = "<|im_start|>hello<|im_end|>"
    assert BYTES.encode(text, parse_special=True)[::2] == [0, 1]
    plain = BYTES.encode(text)
    assert not {0, 1, 2} & set(plain)
    assert BYTES.decode(plain) == text


def test_user_defined_words_are_tokens_in_any_text() -> None:
    assert BYTES.encode("<tool>hello<tool>")[::2] == [3, 3]


def test_user_defined_markers_are_not() -> None:
    tokens = [*bytes_metadata()["tokenizer.ggml.tokens"], "<|user|>"]
    made = Tokenizer.from_gguf(bytes_metadata(tokens=tokens, token_type=[3, 3, 3, 4, *[1] * 264, 4]))
    assert made.encode("<|user|>", parse_special=True) == [268]
    assert 268 not in made.encode("<|user|>")
    assert made.decode([268]) == "<|user|>"  # no control token: it shows


def test_merging_never_makes_a_control_token() -> None:
    # llama.cpp merges this "<s>", since the vocabulary holds "<s" and the control token's text.
    assert 1 not in PIECES.encode("<s>", add_special=False)
    assert PIECES.encode("<s>", add_special=False, parse_special=True) == [1]
    merges = ["< |", "<| im"]
    tokens = [*bytes_metadata()["tokenizer.ggml.tokens"], "<|im"]
    for pre in ("gpt-2", "llama-bpe"):  # the second takes whole words that are tokens
        made = Tokenizer.from_gguf(
            bytes_metadata(
                tokens=tokens, token_type=[3, 3, 3, 4, *[1] * 264, 3], merges=["i m", *merges], pre=pre
            )
        )
        assert 268 not in made.encode("<|im", add_special=False)


def test_byte_tokens_are_not_spelled_by_their_names() -> None:
    newline = PIECES.encode("\n", add_special=False)
    assert newline[-1:] == [3 + 10]
    assert 3 + 10 not in PIECES.encode("<0x0A>", add_special=False)


def test_longest_special_token_wins_and_the_leftmost_first() -> None:
    special = SpecialTokens({"<a>": 1, "<a><b>": 2}, {"b><": 3})
    pieces = list(special.split("x<a><b><a>", parse_special=True))
    assert pieces == [("x", None), ("<a><b>", 2), ("<a>", 1)]
    assert list(special.split("x<a><b><a>", parse_special=False)) == [
        ("x<a><", None),
        ("b><", 3),
        ("a>", None),
    ]


def test_markers_that_touch_untrusted_text_are_text() -> None:
    special = SpecialTokens({"<a>": 1}, {})
    for span in [(0, 1), (2, 3), (1, 2), (0, 3), (2, 5)]:
        assert [token for _, token in special.split("<a><a>", parse_special=True, untrusted=[span])][-1] == (
            1 if span[1] <= 3 else None
        )
        assert next(iter(special.split("<a><a>", parse_special=True, untrusted=[span])))[1] is None


def test_a_refused_marker_hides_none_that_begins_inside_it() -> None:
    special = SpecialTokens({"<<a>": 1, "<a>": 2}, {})
    assert list(special.split("<<a>", parse_special=True, untrusted=[(0, 1)])) == [("<", None), ("<a>", 2)]


@pytest.mark.parametrize("made", [BYTES, PIECES])
def test_bos_is_never_doubled(made: Tokenizer) -> None:
    made = Tokenizer.from_gguf(
        (bytes_metadata if made is BYTES else sentencepiece_metadata)(add_bos_token=True, add_eos_token=True)
    )
    check_bos_once(made)


def check_bos_once(made: Tokenizer) -> None:
    bos, eos = made.decode([made.bos_id], skip_special=False), made.decode([made.eos_id], skip_special=False)
    for text in ("", "ab", bos, f"{bos}ab", f"{bos}ab{eos}"):
        ids = made.encode(text, parse_special=True)
        assert ids.count(made.bos_id) == 1
        assert ids[0] == made.bos_id
        assert ids.count(made.eos_id) == 1
        assert ids[-1] == made.eos_id
        assert made.bos_id not in made.encode(text, parse_special=False, add_special=False)


def test_sabotage_bos(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Tokenizer.from_gguf(bytes_metadata(add_bos_token=True, add_eos_token=True))
    monkeypatch.setattr(Tokenizer, "_lacks_bos", lambda self, ids: self.add_bos)
    with pytest.raises(AssertionError):
        check_bos_once(made)


def test_white_space_after_markers_of_phi3_is_dropped() -> None:
    phi3, plain = tokenizer("phi-3"), tokenizer("llama-spm")
    user = phi3.encode("<|user|>", add_special=False, parse_special=True)
    assert phi3.encode("<|user|> \n\nHi", add_special=False, parse_special=True) == [
        *user,
        *phi3.encode("Hi", add_special=False),
    ]
    assert plain.encode("<s> \n\nHi", add_special=False, parse_special=True)[1:] == plain.encode(
        " \n\nHi", add_special=False
    )


def test_space_prefix_can_be_off() -> None:
    made = Tokenizer.from_gguf(sentencepiece_metadata(add_space_prefix=False))
    ids = made.encode("ab", add_special=False)
    assert [made.token_bytes(id) for id in ids] == [b"ab"]
    assert made.decode(ids) == "ab"
    assert made.decode(made.encode(" ab")) == " ab"


@given(any_text)
def test_byte_level_text_survives(text: str) -> None:
    expected = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    assert BYTES.decode(BYTES.encode(text), skip_special=False) == expected
    assert b"".join(map(BYTES.token_bytes, BYTES.encode(text))).decode() == expected


@given(any_text)
def test_sentencepiece_text_survives(text: str) -> None:
    expected = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    # The one character that such models can't tell from a space.
    assert PIECES.decode(PIECES.encode(text)) == expected.replace("▁", " ")


@given(st.lists(st.sampled_from(["<|im_", "end|>", "<|", "|>", "<|im_end|>", "<tool>", "hello", " ", "\n"])))
def test_plain_text_never_holds_control_tokens(parts: list[str]) -> None:
    text = "".join(parts)
    ids = BYTES.encode(text)
    assert not {0, 1, 2} & set(ids)
    assert BYTES.decode(ids, skip_special=False) == text


def test_long_texts() -> None:
    for unit in ("a", " ", "\n ", "hello ", "😀"):
        text = unit * (200_000 // len(unit))
        assert BYTES.decode(BYTES.encode(text)) == text


def test_ids_out_of_range() -> None:
    for bad in (-1, BYTES.vocab_size):
        with pytest.raises(UnknownToken) as caught:
            BYTES.token_bytes(bad)
        assert caught.value.token_id == bad
        with pytest.raises(IndexError):
            BYTES.decode([5, bad])
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value)
    assert error.remedy == f"Token ids of this model run from 0 to {BYTES.vocab_size - 1}."


def test_numpy_ids_and_metadata() -> None:
    metadata = bytes_metadata()
    metadata["tokenizer.ggml.token_type"] = np.array(metadata["tokenizer.ggml.token_type"], np.int32)
    made = Tokenizer.from_gguf(metadata)
    ids = np.array(made.encode("hello"))
    assert made.decode(ids) == "hello"


def test_other_kinds_are_named() -> None:
    for kind in ("bert", "t5", "rwkv", "no_vocab"):
        with pytest.raises(UnsupportedTokenizer) as caught:
            Tokenizer.from_gguf({"tokenizer.ggml.model": kind})
        assert kind in str(caught.value)
        assert "gpt2" in caught.value.remedy


def test_unknown_pre_tokenizers_are_not_guessed() -> None:
    with pytest.raises(UnsupportedPreTokenizer) as caught:
        Tokenizer.from_gguf(bytes_metadata(pre="from-the-future"))
    assert "smollm" in caught.value.known
    assert Tokenizer.from_gguf(bytes_metadata(pre=None)).encode("hello")


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ({}, "model"),
        ({"tokenizer.ggml.model": 3}, "model"),
        (bytes_metadata(pre=["smollm"]), "pre"),
        (bytes_metadata(tokens=None), "tokens"),
        (bytes_metadata(tokens=[]), "tokens"),
        (bytes_metadata(tokens="hello"), "tokens"),
        (bytes_metadata(tokens=["a", 1]), "tokens"),
        (bytes_metadata(merges=None), "merges"),
        (bytes_metadata(merges=["nospace"]), "merges"),
        (bytes_metadata(token_type=[1, 2]), "token_type"),
        (bytes_metadata(token_type=["a"] * 268), "token_type"),
        (bytes_metadata(token_type=[[1], [1, 2]]), "token_type"),
        (bytes_metadata(bos_token_id=268), "bos_token_id"),
        (bytes_metadata(bos_token_id="x"), "bos_token_id"),
        (bytes_metadata(eos_token_id=True), "eos_token_id"),
        (bytes_metadata(add_bos_token=1), "add_bos_token"),
        (sentencepiece_metadata(scores=None), "scores"),
        (sentencepiece_metadata(scores=[0.0]), "scores"),
        (sentencepiece_metadata(add_space_prefix="no"), "add_space_prefix"),
        (sentencepiece_metadata(tokens=LONG), "tokens"),
    ],
)
def test_broken_metadata_is_named(metadata: dict[str, Any], key: str) -> None:
    with pytest.raises(TokenizerFormatError) as caught:
        Tokenizer.from_gguf(metadata)
    assert caught.value.key == f"tokenizer.ggml.{key}"


@pytest.mark.parametrize(
    ("metadata", "key", "value"),
    [
        (bytes_metadata(), "normalizer", "odd"),
        (bytes_metadata(), "normalizer", 3),
        (bytes_metadata(), "end_token_ids", [268]),
        (bytes_metadata(), "end_token_ids", [-1]),
        (bytes_metadata(), "end_token_ids", "x"),
        (bytes_metadata(), "strip_after", [0.5]),
        (bytes_metadata(), "strip_before", [[1]]),
        (sentencepiece_metadata(), "space_prefix", "odd"),
    ],
)
def test_broken_keys_of_this_project_are_named(metadata: dict[str, Any], key: str, value: Any) -> None:
    with pytest.raises(TokenizerFormatError) as caught:
        Tokenizer.from_gguf({**metadata, f"ostinato.tokenizer.{key}": value})
    assert caught.value.key == f"ostinato.tokenizer.{key}"


def test_keys_of_this_project() -> None:
    keys = {"normalizer": "NFC", "end_token_ids": np.array([0, 9]), "strip_after": [1], "strip_before": [0]}
    made = Tokenizer.from_gguf(
        {**bytes_metadata(), **{f"ostinato.tokenizer.{k}": v for k, v in keys.items()}}
    )
    assert made.end_ids == {0, 1, 2, 9}
    assert made.encode("e\u0301") == made.encode("é")
    hello = made.encode("hello")
    assert made.encode("hello <|im_start|><|im_end|> \u3000hello", parse_special=True) == [
        *hello,
        0,
        1,
        *hello,
    ]


def test_sabotage_length(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        with pytest.raises(TokenizerFormatError):
            Tokenizer.from_gguf(sentencepiece_metadata(tokens=LONG))

    goes_red(monkeypatch, sentencepiece, "check_length", nothing, check)


@pytest.mark.parametrize(
    "metadata",
    [
        bytes_metadata(merges=["h e", "no such", "  ", "he he", "h e"]),
        bytes_metadata(tokens=["", "a", "a", "\udcff", "b"], token_type=[1, 1, 1, 1, 1], merges=[]),
        bytes_metadata(token_type=[99] * 268),
        bytes_metadata(token_type=[3] * 268),
        bytes_metadata(token_type=[5] * 268),
        bytes_metadata(bos_token_id=0xFFFFFFFF, eos_token_id=-1),
        sentencepiece_metadata(scores=[float("nan")] * 269),
        sentencepiece_metadata(token_type=None),
        sentencepiece_metadata(tokens=["\udc80"] * 269),
    ],
)
def test_strange_metadata_makes_a_tokenizer_that_works(metadata: dict[str, Any]) -> None:
    made = Tokenizer.from_gguf(metadata)
    for text in ("hello <|im_end|>\n", "", "\x00", "é😀"):
        for parse_special in (False, True):
            made.decode(made.encode(text, parse_special=parse_special))
    for id in range(made.vocab_size):
        made.token_bytes(id)


def test_the_vocabulary_of_plain_text_holds_no_special_token() -> None:
    vocabulary = Vocabulary.from_gguf(bytes_metadata(), default_ids={})
    assert not set(vocabulary.plain.values()) & (vocabulary.control | {3})
