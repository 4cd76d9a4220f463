"""Streams of tokens: whole characters, and the same text as decoding at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_support import bytes_metadata, sentencepiece_metadata

from ostinato.errors.text import UnknownToken
from ostinato.text import Tokenizer

BYTES = Tokenizer.from_gguf(bytes_metadata())
PIECES = Tokenizer.from_gguf(sentencepiece_metadata())


def push_all(made: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    decoder = made.decoder(**options)
    return [*map(decoder.push, ids), decoder.finish()]


def test_a_character_comes_with_its_last_byte() -> None:
    ids = BYTES.encode("é😀")
    assert push_all(BYTES, ids) == ["", "é", "", "", "", "😀", ""]


def test_an_incomplete_character_is_replaced_at_the_end() -> None:
    ids = BYTES.encode("a😀")[:-1]
    assert push_all(BYTES, ids) == ["a", "", "", "", "\ufffd"]
    assert push_all(BYTES, [*ids, *BYTES.encode("b")]) == ["a", "", "", "", "\ufffdb", ""]


def test_control_tokens_in_the_middle_of_a_character() -> None:
    first, second = BYTES.encode("é")
    assert "".join(push_all(BYTES, [first, 1, second])) == "é"
    assert "".join(push_all(BYTES, [first, 1, second], skip_special=False)) == "\ufffd<|im_end|>\ufffd"


def test_the_space_of_sentencepiece_is_dropped_once_at_the_start_only() -> None:
    ids = PIECES.encode("ab ab", add_special=True)
    assert "".join(push_all(PIECES, ids)) == "ab ab"
    assert "".join(push_all(PIECES, ids[1:], continuation=True)) == " ab ab"
    assert PIECES.decode(ids[1:], continuation=True) == " ab ab"
    assert PIECES.decode(ids, skip_special=False) == "<s> ab ab"
    assert PIECES.decode(PIECES.encode("  ab")) == "  ab"


def test_a_bad_id_leaves_the_decoder_as_it_was() -> None:
    decoder = BYTES.decoder()
    first, second = BYTES.encode("é")
    decoder.push(first)
    with pytest.raises(UnknownToken):
        decoder.push(10_000)
    assert decoder.push(second) == "é"


@given(st.lists(st.integers(0, BYTES.vocab_size - 1), max_size=40), st.booleans())
def test_stream_equals_whole(ids: list[int], skip_special: bool) -> None:
    skipped = [id for id in ids if not (skip_special and BYTES.is_control(id))]
    whole = b"".join(map(BYTES.token_bytes, skipped)).decode("utf-8", "replace")
    assert "".join(push_all(BYTES, ids, skip_special=skip_special)) == whole
    assert BYTES.decode(ids, skip_special=skip_special) == whole


@given(st.lists(st.integers(0, PIECES.vocab_size - 1), max_size=40), st.booleans(), st.booleans())
def test_stream_equals_whole_for_sentencepiece(ids: list[int], skip: bool, continuation: bool) -> None:
    skipped = [id for id in ids if not (skip and PIECES.is_control(id))]
    data = b"".join(map(PIECES.token_bytes, skipped))
    if not continuation:
        data = data.removeprefix(b" ")
    whole = data.decode("utf-8", "replace")
    assert "".join(push_all(PIECES, ids, skip_special=skip, continuation=continuation)) == whole
