"""A SentencePiece tokenizer.model, in the terms of GGUF metadata.

Source of the field numbers and defaults: `sentencepiece_model.proto` of SentencePiece.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ostinato.errors.text import TokenizerFormatError, UnsupportedTokenizer
from ostinato.text import gguf
from ostinato.text.huggingface import added, named
from ostinato.text.huggingface.added import AddedToken
from ostinato.text.huggingface.describe import check_density, stripping
from ostinato.text.huggingface.folder import Folder
from ostinato.text.huggingface.model import KINDS, check_id
from ostinato.text.huggingface.wire import fields, float32, integer, message
from ostinato.text.parts import SENTENCEPIECE
from ostinato.text.vocabulary import MORE_ENDS, TokenType

FILE = "tokenizer.model"

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_MODEL_TYPE, _SPACE_AS_SUFFIX, _BOS_ID, _EOS_ID = 3, 24, 41, 42
_CHARSMAP, _DUMMY_PREFIX, _REMOVE_SPACES, _ESCAPE_SPACES = 2, 3, 4, 5
_MODEL_TYPES = {1: "Unigram", 2: "BPE", 3: "word", 4: "char"}


@dataclasses.dataclass
class _Model:
    tokens: list[str]
    scores: list[float]
    types: list[int]
    trainer: dict[int, int]
    normalizer: dict[int, int]


def metadata(folder: Folder, vocab_size: int | None) -> dict[str, Any]:
    """What a GGUF file of this tokenizer would hold; `Tokenizer.from_gguf` takes it.

    Raises:
        UnsupportedTokenizer: the model is no BPE, or changes text before merging.
        TokenizerFormatError: a file is malformed.
    """
    model = _parse(folder.bytes(FILE))
    check_kind(model.trainer, model.normalizer)
    extra = {**added.parse(folder), **_added_tokens_json(folder)}
    check_density(max([*extra, 0]), len(model.tokens) + len(extra), FILE)
    for id, token in sorted(extra.items()):
        added_type = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
        _extend(model, id)
        if model.types[id] == TokenType.NORMAL or model.tokens[id] != token.text:
            model.tokens[id], model.types[id] = token.text, added_type
    if vocab_size:
        _extend(model, check_id(vocab_size - 1, "vocab_size", "config.json"))
    ids = {text: id for id, text in enumerate(model.tokens)}
    names = named.find(folder, ids, None, add_bos=True)
    strip_before, strip_after = stripping(extra.values())
    return {
        "tokenizer.ggml.model": SENTENCEPIECE,
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": model.tokens,
        "tokenizer.ggml.scores": model.scores,
        "tokenizer.ggml.token_type": model.types,
        "tokenizer.ggml.bos_token_id": _first(names.bos_id, model.trainer.get(_BOS_ID, 1)),
        "tokenizer.ggml.eos_token_id": _first(names.eos_id, model.trainer.get(_EOS_ID, 2)),
        "tokenizer.ggml.unknown_token_id": _unknown(model.types),
        "tokenizer.ggml.add_bos_token": names.add_bos,
        "tokenizer.ggml.add_eos_token": names.add_eos,
        "tokenizer.ggml.add_space_prefix": bool(model.normalizer.get(_DUMMY_PREFIX, 1)),
        MORE_ENDS: sorted(names.end_ids),
        gguf.STRIP_BEFORE: sorted(strip_before),
        gguf.STRIP_AFTER: sorted(strip_after),
    }


def check_kind(trainer: dict[int, int], normalizer: dict[int, int]) -> None:
    """The model is BPE and takes text as it is, but for spaces."""
    kind = _MODEL_TYPES.get(trainer.get(_MODEL_TYPE, 1), "of an unknown kind")
    if kind != "BPE":
        raise UnsupportedTokenizer(f"SentencePiece {kind}", KINDS)
    if trainer.get(_SPACE_AS_SUFFIX, 0):
        raise UnsupportedTokenizer("SentencePiece with spaces after words", KINDS)
    if normalizer.get(_CHARSMAP, 0) or normalizer.get(_REMOVE_SPACES, 1):
        raise UnsupportedTokenizer("SentencePiece that normalises text", KINDS)
    if not normalizer.get(_ESCAPE_SPACES, 1):
        raise UnsupportedTokenizer("SentencePiece without '▁'", KINDS)


def _parse(data: bytes) -> _Model:
    model = _Model([], [], [], {}, {})
    for number, value in fields(data, FILE):
        if number == _PIECES:
            _parse_piece(model, message(value, FILE))
        elif number in (_TRAINER, _NORMALIZER):
            settings = model.trainer if number == _TRAINER else model.normalizer
            for key, setting in fields(message(value, FILE), FILE):
                # Of texts it only matters whether there is one.
                settings[key] = integer(setting, FILE) if isinstance(setting, int) else len(setting)
    if not model.tokens:
        raise TokenizerFormatError("pieces", "at least one", "none", file=FILE)
    return model


def _parse_piece(model: _Model, data: bytes) -> None:
    text, score, kind = b"", 0.0, int(TokenType.NORMAL)
    for number, value in fields(data, FILE):
        if number == _PIECE_TEXT:
            text = message(value, FILE)
        elif number == _PIECE_SCORE:
            score = float32(value, FILE)
        elif number == _PIECE_TYPE:
            kind = integer(value, FILE)
    check_id(len(model.tokens), "pieces", FILE)
    model.tokens.append(text.decode("utf-8", "surrogateescape"))
    model.scores.append(score)
    model.types.append(kind)


def _extend(model: _Model, last: int) -> None:
    for id in range(len(model.tokens), last + 1):
        model.tokens.append(f"[PAD{id}]")
        model.scores.append(0.0)
        model.types.append(TokenType.UNUSED)


def _added_tokens_json(folder: Folder) -> dict[int, AddedToken]:
    file = "added_tokens.json"
    listed = {check_id(id, repr(text), file): text for text, id in folder.json(file).items()}
    described = added.parse(folder)
    return {
        id: described.get(id) or AddedToken(id, text, special=False, strip_before=False, strip_after=False)
        for id, text in listed.items()
    }


def _first(named_id: int | None, default: int) -> int:
    return default if named_id is None else named_id


def _unknown(types: list[int]) -> int:
    return types.index(TokenType.UNKNOWN) if TokenType.UNKNOWN in types else -1
