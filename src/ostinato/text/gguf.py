"""The parts of a tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinato.errors.text import TokenizerFormatError, UnsupportedTokenizer
from ostinato.text import sentencepiece
from ostinato.text.parts import BYTE_LEVEL, SENTENCEPIECE, Parts, byte_pairs
from ostinato.text.pretokenizers import pre_tokenizer
from ostinato.text.spaces import SpacePrefix, Spaces
from ostinato.text.vocabulary import Vocabulary, flag, id_list, string, string_list

KINDS = (BYTE_LEVEL, SENTENCEPIECE)
"""The values of `tokenizer.ggml.model` that are known: byte-level BPE and SentencePiece BPE."""

# Keys of this project, for what GGUF has no key for; other readers pass over them.
NORMALIZER = "ostinato.tokenizer.normalizer"
SPACE_PREFIX = "ostinato.tokenizer.space_prefix"
STRIP_BEFORE = "ostinato.tokenizer.strip_before"
STRIP_AFTER = "ostinato.tokenizer.strip_after"

NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD")


def parts(metadata: Mapping[str, Any]) -> Parts:
    """See `Tokenizer.from_gguf`."""
    if "tokenizer.ggml.model" not in metadata:
        raise TokenizerFormatError("tokenizer.ggml.model", "a kind of tokenizer", "nothing")
    kind = string(metadata, "tokenizer.ggml.model", "")
    if kind == BYTE_LEVEL:
        return _byte_level(metadata)
    if kind == SENTENCEPIECE:
        return _sentencepiece(metadata)
    raise UnsupportedTokenizer(kind, KINDS)


def _byte_level(metadata: Mapping[str, Any]) -> Parts:
    from tokenizers import Tokenizer, normalizers

    pre = pre_tokenizer(string(metadata, "tokenizer.ggml.pre", ""))
    normalizer = string(metadata, NORMALIZER, "")
    if normalizer and normalizer not in NORMALIZERS:
        raise TokenizerFormatError(NORMALIZER, " or ".join(NORMALIZERS), repr(normalizer))
    vocabulary = Vocabulary.from_gguf(metadata, default_ids={})
    pairs = []
    for merge in string_list(metadata, "tokenizer.ggml.merges"):
        left, space, right = merge.partition(" ")
        if not space:
            raise TokenizerFormatError("tokenizer.ggml.merges", "two tokens a merge", repr(merge))
        pairs.append((left, right))
    backend = Tokenizer(byte_pairs(vocabulary.plain, pairs, ignore_merges=pre.ignore_merges))
    backend.pre_tokenizer = pre.build()
    if normalizer:
        backend.normalizer = getattr(normalizers, normalizer)()
    return Parts(
        BYTE_LEVEL,
        vocabulary,
        backend,
        add_bos=flag(metadata, "tokenizer.ggml.add_bos_token", pre.add_bos),
        add_eos=flag(metadata, "tokenizer.ggml.add_eos_token", False),
        spaces=_spaces(metadata, vocabulary, SpacePrefix.NEVER),
    )


def _sentencepiece(metadata: Mapping[str, Any]) -> Parts:
    vocabulary = Vocabulary.from_gguf(
        metadata, default_ids={"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    )
    if vocabulary.scores is None:
        raise TokenizerFormatError("tokenizer.ggml.scores", "one score a token", "nothing")
    by_flag = flag(metadata, "tokenizer.ggml.add_space_prefix", True)
    return Parts(
        SENTENCEPIECE,
        vocabulary,
        sentencepiece.build(vocabulary, sentencepiece.merges_by_score(vocabulary)),
        add_bos=flag(metadata, "tokenizer.ggml.add_bos_token", True),
        add_eos=flag(metadata, "tokenizer.ggml.add_eos_token", False),
        spaces=_spaces(metadata, vocabulary, SpacePrefix.EACH if by_flag else SpacePrefix.NEVER),
    )


def _spaces(metadata: Mapping[str, Any], vocabulary: Vocabulary, default: SpacePrefix) -> Spaces:
    name = string(metadata, SPACE_PREFIX, default)
    if name not in list(SpacePrefix):
        raise TokenizerFormatError(SPACE_PREFIX, " or ".join(SpacePrefix), repr(name))
    strip_after = frozenset(id_list(metadata, STRIP_AFTER, len(vocabulary.tokens)))
    return Spaces(
        SpacePrefix(name),
        strip_before=frozenset(id_list(metadata, STRIP_BEFORE, len(vocabulary.tokens))),
        strip_after=strip_after if STRIP_AFTER in metadata else _phi3_markers(metadata, vocabulary),
    )


def _phi3_markers(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> frozenset[int]:
    """The markers after which Phi-3 drops white space.

    GGUF doesn't say; Phi-3 is the one SentencePiece family whose markers do (llama.cpp knows it by its
    name too). Its "<s>", "<unk>" and "<|endoftext|>" are the exceptions.
    """
    name = string(metadata, "general.name", "").lower()
    phi3 = string(metadata, "general.architecture", "") == "phi3" or "phi-3" in name or "phi3" in name
    if not phi3 or string(metadata, "tokenizer.ggml.model", "") != SENTENCEPIECE:
        return frozenset()
    plain_markers = ("<s>", "<unk>", "<|endoftext|>")
    return frozenset(id for text, id in vocabulary.markers.items() if text not in plain_markers)
