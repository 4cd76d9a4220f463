"""The `model` of a tokenizer.json: vocabulary, merges and how they are used."""

from __future__ import annotations

import dataclasses
from typing import Any

from ostinato.errors.text import TokenizerFormatError, UnsupportedTokenizer
from ostinato.text.huggingface.folder import expect, member

KINDS = ("byte-level BPE", "BPE with byte fallback")
"""What is supported of Hugging Face's tokenizers."""

MAX_TOKENS = 1 << 22
"""The most token ids; the largest real vocabularies have a few hundred thousand."""


@dataclasses.dataclass(frozen=True)
class BpeModel:
    vocab: dict[str, int]
    merges: list[tuple[str, str]]
    byte_fallback: bool
    fuse_unknown: bool
    ignore_merges: bool
    unknown: str | None


def parse(description: dict[str, Any]) -> BpeModel:
    """Reads the model; `description` is the whole tokenizer.json.

    Dropout, a device of training, is left out.

    Raises:
        UnsupportedTokenizer: it is no BPE, or one with a prefix or suffix on its pieces.
        TokenizerFormatError: it is malformed or contradicts itself.
    """
    model = expect(description.get("model"), dict, "model")
    # Files from before 2021 don't name the type.
    kind = member(model, "type", str, "BPE" if "merges" in model else "", "model")
    if kind != "BPE":
        raise UnsupportedTokenizer(kind or "without a name", KINDS)
    for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
        if member(model, affix, str, "", "model"):
            raise UnsupportedTokenizer(f"BPE with {affix}", KINDS)
    vocab = expect(model.get("vocab"), dict, "model.vocab")
    check_vocab(vocab)
    merges = _merges(expect(model.get("merges"), list, "model.merges"))
    check_merges(merges, vocab)
    unknown = model.get("unk_token")
    return BpeModel(
        vocab=vocab,
        merges=merges,
        byte_fallback=member(model, "byte_fallback", bool, False, "model"),
        fuse_unknown=member(model, "fuse_unk", bool, False, "model"),
        ignore_merges=member(model, "ignore_merges", bool, False, "model"),
        unknown=None if unknown is None else expect(unknown, str, "model.unk_token"),
    )


def check_vocab(vocab: dict[str, Any]) -> None:
    """Token ids are integers in range, and no two tokens share one."""
    for text, id in vocab.items():
        if type(id) is not int or not 0 <= id < MAX_TOKENS:
            check_id(id, f"model.vocab[{text!r}]")
    if len(set(vocab.values())) != len(vocab):
        raise TokenizerFormatError(
            "model.vocab", "an id of its own for each token", "an id used twice", file=_FILE
        )


def check_id(id: Any, key: str, file: str = "tokenizer.json") -> int:
    """The id is an integer below `MAX_TOKENS`."""
    if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id < MAX_TOKENS:
        raise TokenizerFormatError(key, f"an id below {MAX_TOKENS}", repr(id), file=file)
    return id


def check_merges(merges: list[tuple[str, str]], vocab: dict[str, int]) -> None:
    """Every merge is made of tokens, and makes one."""
    for left, right in merges:
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise TokenizerFormatError(
                "model.merges", "merges between tokens", f"{left!r} {right!r}", file=_FILE
            )


_FILE = "tokenizer.json"


def _merges(merges: list[Any]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        # "a b" up to 2024, ["a", "b"] since.
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise TokenizerFormatError("model.merges", "two tokens a merge", repr(merge), file=_FILE)
        pairs.append((pair[0], pair[1]))
    return pairs
