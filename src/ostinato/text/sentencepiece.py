"""SentencePiece BPE ("llama" vocabularies): merges found by score, spaces as '▁', bytes as a fallback.

SentencePiece has no list of merges: of all neighbours whose union is a token it merges the pair with the
highest score, the leftmost of equals, until none is left. A ranked list of all ways to split every
token, best score first, makes a BPE with explicit merges do the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ostinato.errors.text import TokenizerFormatError
from ostinato.text.spaces import SPACE
from ostinato.text.special import without_surrogates
from ostinato.text.vocabulary import TokenType, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as TokenizersTokenizer


MAX_LENGTH = 1024
"""The longest token that merging may make, in characters; SentencePiece stops at 16 unless told."""


def byte_value(token: str) -> int | None:
    """The byte of a token written "<0x0A>", or None for any other text."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return int(token[3:5], 16)
        except ValueError:
            return None
    return None


def token_to_bytes(vocabulary: Vocabulary, token_id: int) -> bytes:
    """The bytes that a token of such a vocabulary stands for."""
    token = vocabulary.tokens[token_id]
    kind = vocabulary.types[token_id]
    if kind == TokenType.BYTE:
        value = byte_value(token)
        if value is not None:
            return bytes([value])
    elif kind == TokenType.NORMAL:
        token = token.replace(SPACE, " ")
    return token.encode("utf-8", "surrogateescape")


def merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every way to make a token from two others, in the order of the made token's score.

    Raises:
        TokenizerFormatError: a token is too long to look for its parts.
    """
    mergeable = {
        token: id
        for token, id in vocabulary.plain.items()
        # A byte token stands for its byte, never for the text "<0x0A>".
        if vocabulary.types[id] != TokenType.BYTE
    }
    assert vocabulary.scores is not None
    tokens = list(mergeable)
    scores = vocabulary.scores[np.fromiter(mergeable.values(), np.int64, len(mergeable))]
    merges: list[tuple[str, str]] = []
    for index in np.argsort(-scores, kind="stable").tolist():
        token = tokens[index]
        check_length(token)
        for cut in range(1, len(token)):
            left = token[:cut]
            if left in mergeable:
                right = token[cut:]
                if right in mergeable:
                    merges.append((left, right))
    return merges


def check_length(token: str) -> None:
    """Looking for a token's parts takes the square of its length."""
    if len(token) > MAX_LENGTH:
        raise TokenizerFormatError(
            "tokenizer.ggml.tokens", f"tokens of at most {MAX_LENGTH} characters", f"one of {len(token)}"
        )


def build(
    vocabulary: Vocabulary, merges: list[tuple[str, str]], *, fuse_unknown: bool = False
) -> TokenizersTokenizer:
    """The `tokenizers` object; its input already has '▁' for spaces.

    Characters that no token holds fall back to the tokens of their bytes, then to the unknown token.
    """
    from tokenizers import Tokenizer, models

    plain, unknown = dict(vocabulary.plain), None
    if vocabulary.unknown_id is not None:
        unknown = without_surrogates(vocabulary.tokens[vocabulary.unknown_id])
        plain[unknown] = vocabulary.unknown_id
    return Tokenizer(
        models.BPE(
            vocab=plain,
            merges=merges,
            byte_fallback=True,
            unk_token=unknown,
            fuse_unk=fuse_unknown,
            cache_capacity=0,  # a "word" here is a whole text: nothing to gain, and nobody's text stays
        )
    )
