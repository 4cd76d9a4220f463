"""A tokenizer.json and the files beside it, understood but not built yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from ostinato.errors.text import TokenizerFormatError, UnsupportedTokenizer
from ostinato.text.huggingface import added, cutting, model, named, spacing
from ostinato.text.huggingface.added import AddedToken
from ostinato.text.huggingface.cutting import Stage
from ostinato.text.huggingface.folder import Folder
from ostinato.text.parts import BYTE_LEVEL, SENTENCEPIECE
from ostinato.text.sentencepiece import byte_value
from ostinato.text.spaces import Spaces
from ostinato.text.vocabulary import TokenType, Vocabulary, looks_like_marker

_FILE = "tokenizer.json"


@dataclasses.dataclass(frozen=True)
class Description:
    kind: str
    model: model.BpeModel
    vocabulary: Vocabulary
    named: named.NamedTokens
    spaces: Spaces
    normalizers: list[Stage]  # of byte-level tokenizers
    pre_tokenizers: list[Stage]
    split: bool = False  # of SentencePiece ones: merge word by word


def describe(folder: Folder, vocab_size: int | None) -> Description:
    """Reads a folder with a tokenizer.json; see `Tokenizer.from_hf`."""
    description = folder.json(_FILE)
    bpe = model.parse(description)
    normalizers = cutting.stages(description, "normalizer")
    pre_tokenizers = cutting.stages(description, "pre_tokenizer")
    kinds = [stage["type"] for stage in pre_tokenizers]
    space = spacing.Spacing(Spaces().prefix)
    if "ByteLevel" in kinds:
        kind = BYTE_LEVEL
        cutting.check_byte_level(normalizers, pre_tokenizers)
    elif bpe.byte_fallback:
        kind = SENTENCEPIECE
        space = spacing.recognise(normalizers, pre_tokenizers)
        if bpe.ignore_merges:
            raise UnsupportedTokenizer("BPE with byte fallback that ignores merges", model.KINDS)
    else:
        cut = ", ".join(kinds) or "nothing"
        raise UnsupportedTokenizer(f"BPE cut by {cut} and without byte fallback", model.KINDS)
    extra = added.parse(folder)
    tokens = tokens_by_id(bpe.vocab, extra, vocab_size)
    ids = {**bpe.vocab, **{token.text: id for id, token in extra.items()}}
    names = named.find(folder, ids, bpe.unknown)
    vocabulary = Vocabulary.assemble(
        [text if text is not None else f"[PAD{id}]" for id, text in enumerate(tokens)],
        _types(kind, tokens, extra, names),
        {
            "bos_token_id": names.bos_id,
            "eos_token_id": names.eos_id,
            "unknown_token_id": names.unknown_id,
            "eot_token_id": None,
            "eom_token_id": None,
        },
        more_ends=names.end_ids,
    )
    spaces = Spaces(space.prefix, *stripping(extra.values()))
    return Description(kind, bpe, vocabulary, names, spaces, normalizers, pre_tokenizers, split=space.split)


def stripping(tokens: Iterable[AddedToken]) -> tuple[frozenset[int], frozenset[int]]:
    """The tokens before which, and those after which, white space is dropped."""
    tokens = list(tokens)
    return (
        frozenset(token.id for token in tokens if token.strip_before),
        frozenset(token.id for token in tokens if token.strip_after),
    )


def tokens_by_id(
    vocab: Mapping[str, int], extra: Mapping[int, AddedToken], vocab_size: int | None
) -> list[str | None]:
    """Token texts by id, None where there is none.

    Raises:
        TokenizerFormatError: an added token contradicts the vocabulary, or ids lie far apart.
    """
    by_id = {id: text for text, id in vocab.items()}
    for id, token in extra.items():
        known = by_id.setdefault(id, token.text)
        added.check_agreement(known, token.text, f"the added token {id}", _FILE)
        added.check_agreement(str(vocab.get(token.text, id)), str(id), f"the id of {token.text!r}", _FILE)
    if not by_id:
        raise TokenizerFormatError("model.vocab", "at least one token", "none", file=_FILE)
    count = max(by_id) + 1
    check_density(max(by_id), len(by_id), _FILE)
    if vocab_size:
        count = max(count, model.check_id(vocab_size - 1, "vocab_size", "config.json") + 1)
    return [by_id.get(id) for id in range(count)]


def check_density(highest: int, n_tokens: int, file: str) -> None:
    """A few ids may be unused, not most of a large range."""
    if highest >= 2 * n_tokens + 65_536:
        raise TokenizerFormatError("ids", f"ids close to 0 to {n_tokens}", str(highest), file=file)


def _types(
    kind: str,
    tokens: list[str | None],
    extra: Mapping[int, AddedToken],
    names: named.NamedTokens,
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    types = np.full(len(tokens), TokenType.NORMAL, np.int32)
    for id, text in enumerate(tokens):
        if text is None:
            types[id] = TokenType.UNUSED
        elif kind == SENTENCEPIECE and byte_value(text) is not None:
            types[id] = TokenType.BYTE
    for id, token in extra.items():
        types[id] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
    # A token that only the configuration names is a marker if it is written like one, else a word.
    for named_id in (names.bos_id, names.eos_id, names.unknown_id):
        if named_id is not None and types[named_id] == TokenType.NORMAL:
            text = tokens[named_id] or ""
            if looks_like_marker(text) or (text[:1], text[-1:]) in (("<", ">"), ("[", "]")):
                types[named_id] = TokenType.CONTROL
    if kind == SENTENCEPIECE and names.unknown_id is not None:
        types[names.unknown_id] = TokenType.UNKNOWN
    return types
