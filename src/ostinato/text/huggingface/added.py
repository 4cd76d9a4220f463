"""The added tokens of a Hugging Face tokenizer: matched whole, before anything is merged."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ostinato.errors.text import TokenizerFormatError, UnsupportedTokenizer
from ostinato.text.huggingface.folder import Folder, expect, member
from ostinato.text.huggingface.model import KINDS, check_id


@dataclasses.dataclass(frozen=True)
class AddedToken:
    """`normalized` is left out: tokens are looked for in the text as it was given."""

    id: int
    text: str
    special: bool  # a control token
    strip_before: bool
    strip_after: bool


def parse(folder: Folder) -> dict[int, AddedToken]:
    """The added tokens by id: those of tokenizer.json, and others that tokenizer_config.json adds.

    Raises:
        UnsupportedTokenizer: one that is only matched between words.
        TokenizerFormatError: an entry is malformed, or two contradict each other.
    """
    found: dict[int, AddedToken] = {}
    for file, key, id, entry in _entries(folder):
        token = _token(entry, id, key, file)
        known = found.get(token.id)
        if known is None:
            found[token.id] = token
        else:
            check_agreement(known.text, token.text, key, file)
    return found


def check_agreement(known: str, text: str, key: str, file: str) -> None:
    """An id stands for one text."""
    if known != text:
        raise TokenizerFormatError(key, repr(known), repr(text), file=file)


def _entries(folder: Folder) -> Iterator[tuple[str, str, Any, Any]]:
    file = "tokenizer.json"
    entries = member(folder.json(file), "added_tokens", list, [], "", file)
    for index, entry in enumerate(entries):
        key = f"added_tokens[{index}]"
        yield file, key, expect(entry, dict, key, file).get("id"), entry
    file = "tokenizer_config.json"
    decoder = member(folder.json(file), "added_tokens_decoder", dict, {}, "", file)
    for id, entry in decoder.items():
        yield file, f"added_tokens_decoder[{id!r}]", int(id) if _is_number(id) else id, entry


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _token(entry: Any, id: Any, key: str, file: str) -> AddedToken:
    entry = expect(entry, dict, key, file)
    text = expect(entry.get("content"), str, f"{key}.content", file)
    if member(entry, "single_word", bool, False, key, file):
        raise UnsupportedTokenizer(f"one with an added token, {text!r}, that only matches whole words", KINDS)
    return AddedToken(
        id=check_id(id, key, file),
        text=text,
        special=member(entry, "special", bool, False, key, file),
        strip_before=member(entry, "lstrip", bool, False, key, file),
        strip_after=member(entry, "rstrip", bool, False, key, file),
    )
