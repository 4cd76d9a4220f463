"""A vocabulary: tokens, what each is for, and the tokens with a name.

Source of the keys: the GGUF specification ("Tokenizer"). Source of the defaults and of the names of
end-of-turn tokens: llama.cpp, `llama_vocab::impl::load`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ostinato.errors.text import TokenizerFormatError


class TokenType(enum.IntEnum):
    """`tokenizer.ggml.token_type`, one a token."""

    NORMAL = 1
    UNKNOWN = 2  # stands for what the vocabulary can't spell; never made from text
    CONTROL = 3  # a marker such as "<|im_end|>"; never made from plain text
    USER_DEFINED = 4  # matched whole wherever its text occurs, before anything else
    UNUSED = 5  # never made from text
    BYTE = 6  # "<0x0A>": one raw byte


# Tokens that end a turn in some family of models, and are control tokens whatever the file calls them.
_END_MARKERS = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|eom_id|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<|tool_response>",
        "<|END_OF_TURN_TOKEN|>",
        "<｜end▁of▁sentence｜>",
    }
)
# The same, but plain enough to be ordinary text in other vocabularies (Gemma's "</s>" is HTML).
_END_WORDS = frozenset({"</s>", "<eos>", "<EOT>", "[EOT]", "[EOS]", "[e~["})

_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
NAMED_TOKENS = ("bos_token_id", "unknown_token_id", *_END_KEYS)
MORE_ENDS = "ostinato.tokenizer.end_token_ids"
"""A key of this project: ids that end generation and that GGUF's own keys have no room for."""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, with their roles.

    `control` are the ids that only a marker in trusted text can produce and that decoding leaves out.
    `markers` are the texts that only count as tokens in trusted text: the control tokens, and those
    user-defined ones that are written like control tokens ("<|tool|>"), since some files type the very
    markers of their turns that way. `literals` are the other user-defined tokens, matched in any text.
    """

    tokens: list[str]
    types: list[int]  # a `TokenType` where the file keeps to them
    scores: np.ndarray[Any, np.dtype[np.float32]] | None  # [vocab]
    control: frozenset[int]
    markers: dict[str, int]
    literals: dict[str, int]
    plain: dict[str, int]  # what merging plain text may produce
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    end_ids: frozenset[int]

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], *, default_ids: Mapping[str, int]) -> Vocabulary:
        """Reads the vocabulary; `default_ids` are used where the file names no such token.

        Raises:
            TokenizerFormatError: a key is missing, of the wrong type or length, or out of range.
        """
        tokens = string_list(metadata, "tokenizer.ggml.tokens")
        if not tokens:
            raise TokenizerFormatError("tokenizer.ggml.tokens", "at least one token", "an empty list")
        types = _per_token(metadata, "tokenizer.ggml.token_type", len(tokens))
        scores = _per_token(metadata, "tokenizer.ggml.scores", len(tokens))
        ids = {
            key: _token_id(metadata, f"tokenizer.ggml.{key}", len(tokens), default_ids.get(key))
            for key in NAMED_TOKENS
        }
        return cls.assemble(
            tokens,
            np.ones(len(tokens), np.int32) if types is None else types.astype(np.int32),
            ids,
            scores=None if scores is None else scores.astype(np.float32),
            more_ends=id_list(metadata, MORE_ENDS, len(tokens)),
        )

    @classmethod
    def assemble(
        cls,
        tokens: list[str],
        types: np.ndarray[Any, np.dtype[np.int32]],
        ids: Mapping[str, int | None],
        *,
        scores: np.ndarray[Any, np.dtype[np.float32]] | None = None,
        more_ends: Iterable[int] = (),
    ) -> Vocabulary:
        """Gives every token its role.

        Args:
            tokens: token texts by id.
            types: [vocab], each a `TokenType` where the file keeps to them.
            ids: the tokens with a name, by the names in `NAMED_TOKENS`; valid ids or None.
            scores: [vocab], of vocabularies that merge by score.
            more_ends: valid ids that end generation besides the named ones.
        """
        control = set(_of_type(types, TokenType.CONTROL, TokenType.UNKNOWN))
        # A file that types its own <s> as user-defined still means a marker; one that types it normal
        # may have named an ordinary word, which must stay a word.
        control.update(id for id in ids.values() if id is not None and types[id] != TokenType.NORMAL)
        by_text = {text: id for id, text in enumerate(tokens)}
        ends = {id for text in _END_MARKERS if (id := by_text.get(text)) is not None}
        control |= ends
        ends.update(id for text in _END_WORDS if (id := by_text.get(text)) in control and id is not None)
        ends.update(id for key in _END_KEYS if (id := ids[key]) is not None)
        ends.update(more_ends)
        _drop_message_separator(ends, by_text)

        user_defined = [id for id in _of_type(types, TokenType.USER_DEFINED) if id not in control]
        marker_ids = [*sorted(control), *(id for id in user_defined if looks_like_marker(tokens[id]))]
        literal_ids = [id for id in user_defined if not looks_like_marker(tokens[id])]
        hidden = {*control, *user_defined, *_of_type(types, TokenType.UNUSED)}
        plain = by_text  # not needed whole any more
        for id in hidden:
            plain.pop(tokens[id], None)
        plain.pop("", None)
        _drop_unspeakable(plain)
        return cls(
            tokens=tokens,
            types=types.tolist(),
            scores=scores,
            control=frozenset(control),
            markers={tokens[id]: id for id in marker_ids if tokens[id]},
            literals={tokens[id]: id for id in literal_ids if tokens[id]},
            plain=plain,
            bos_id=ids["bos_token_id"],
            eos_id=ids["eos_token_id"],
            unknown_id=ids["unknown_token_id"],
            end_ids=frozenset(ends),
        )


def flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    """A boolean of the metadata, or the default where the key is missing.

    Raises:
        TokenizerFormatError: the value is not a boolean.
    """
    value = metadata.get(key, default)
    if not isinstance(value, bool | np.bool_):
        raise TokenizerFormatError(key, "a boolean", type(value).__name__)
    return bool(value)


def string(metadata: Mapping[str, Any], key: str, default: str) -> str:
    """A string of the metadata, or the default where the key is missing.

    Raises:
        TokenizerFormatError: the value is not a string.
    """
    value = metadata.get(key, default)
    if not isinstance(value, str):
        raise TokenizerFormatError(key, "a string", type(value).__name__)
    return value


def string_list(metadata: Mapping[str, Any], key: str) -> list[str]:
    """A list of strings of the metadata.

    Raises:
        TokenizerFormatError: the key is missing or the value is not a list of strings.
    """
    value = metadata.get(key)
    if value is None:
        raise TokenizerFormatError(key, "a list of strings", "nothing")
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TokenizerFormatError(key, "a list of strings", type(value).__name__)
    return value


def _per_token(metadata: Mapping[str, Any], key: str, n_tokens: int) -> np.ndarray[Any, Any] | None:
    value = metadata.get(key)
    if value is None:
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged list
        raise TokenizerFormatError(key, "an array of numbers", "a list of other things") from None
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise TokenizerFormatError(key, "an array of numbers", f"{array.ndim}-dimensional {array.dtype}")
    if len(array) < n_tokens:
        raise TokenizerFormatError(key, f"{n_tokens} values, one a token", f"{len(array)}")
    return array[:n_tokens]


def _token_id(metadata: Mapping[str, Any], key: str, n_tokens: int, default: int | None) -> int | None:
    value = metadata.get(key)
    if value is None:
        return default if default is not None and default < n_tokens else None
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TokenizerFormatError(key, "a token id", type(value).__name__)
    if value == 0xFFFF_FFFF or value == -1:  # how some converters write "none"
        return None
    if not 0 <= value < n_tokens:
        raise TokenizerFormatError(key, f"a token id below {n_tokens}", str(value))
    return int(value)


def id_list(metadata: Mapping[str, Any], key: str, n_tokens: int) -> list[int]:
    """A list of token ids of the metadata; empty where the key is missing.

    Raises:
        TokenizerFormatError: the value is not a list of ids below `n_tokens`.
    """
    value = metadata.get(key)
    if value is None:
        return []
    ids = np.asarray(value) if isinstance(value, list | np.ndarray) else None
    if ids is None or ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise TokenizerFormatError(key, "a list of token ids", type(value).__name__)
    if ids.size and not (ids.min() >= 0 and ids.max() < n_tokens):
        raise TokenizerFormatError(key, f"token ids below {n_tokens}", str(ids.tolist()))
    result: list[int] = ids.astype(np.int64).tolist()
    return result


def _of_type(types: np.ndarray[Any, np.dtype[np.int32]], *wanted: TokenType) -> Iterable[int]:
    ids: list[int] = np.flatnonzero(np.isin(types, wanted)).tolist()
    return ids


def looks_like_marker(text: str) -> bool:
    """Whether a text is written like the markers of turns, so that only trusted text may hold it."""
    return text in _END_WORDS or any(bar in text for bar in ("<|", "|>", "<｜", "｜>"))


def _drop_message_separator(ends: set[int], by_text: Mapping[str, int]) -> None:
    # In the harmony format "<|end|>" closes a message, after which the same turn goes on;
    # what ends the turn is one of these.
    if {by_text.get("<|return|>"), by_text.get("<|flush|>")} & ends and (
        {by_text.get("<|call|>"), by_text.get("<|calls|>")} & ends
    ):
        ends.discard(by_text.get("<|end|>", -1))


def _drop_unspeakable(plain: dict[str, int]) -> None:
    # Tokens that are not valid UTF-8 came in as lone surrogates: no text can spell them.
    try:
        "".join(plain).encode()
    except UnicodeEncodeError:
        for text in [text for text in plain if any("\ud800" <= char <= "\udfff" for char in text)]:
            del plain[text]
