"""SentencePiece BPE ("llama" vocabularies): merges found by score, spaces as '▁', bytes as a fallback.

SentencePiece has no list of merges: of all neighbours whose union is a token it merges the pair with the
highest score, the leftmost of equals, until none is left. A ranked list of all ways to split every
token, best score first, makes a BPE with explicit merges do the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ostinato.text.vocabulary import TokenType, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as TokenizersTokenizer

SPACE = "▁"


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
    """Every way to make a token from two others, in the order of the made token's score."""
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
        for cut in range(1, len(token)):
            left = token[:cut]
            if left in mergeable:
                right = token[cut:]
                if right in mergeable:
                    merges.append((left, right))
    return merges


def build(
    plain: Mapping[str, int], merges: list[tuple[str, str]], unknown: str | None
) -> TokenizersTokenizer:
    """The `tokenizers` object; its input already has '▁' for spaces.

    Characters that no token holds fall back to the tokens of their bytes, then to `unknown`.
    """
    from tokenizers import Tokenizer, models

    return Tokenizer(
        models.BPE(
            vocab=dict(plain),
            merges=merges,
            byte_fallback=True,
            unk_token=unknown,
            fuse_unk=False,
            cache_capacity=0,  # a "word" here is a whole text: nothing to gain, and nobody's text stays
        )
    )
