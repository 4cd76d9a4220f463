"""Scores of tokens from ranked merges: the way back from a tokenizer.json to a SentencePiece model.

Converters to tokenizer.json list every way to make each token from two, the tokens by descending score; of
equal scores, the ways with the longer left and then right part first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ostinato.errors.text import TokenizerNotConvertible
from ostinato.text.sentencepiece import merges_by_score
from ostinato.text.vocabulary import Vocabulary

Merge = tuple[str, str]


def scores(vocabulary: Vocabulary, merges: Sequence[Merge]) -> list[float]:
    """Scores by which the same merges happen in the same order; tokens that no merge makes come last.

    Raises:
        TokenizerNotConvertible: the merges are not those that any scores would give.
    """
    groups = tied(merges)
    rank = {left + right: index for index, group in enumerate(groups) for left, right in group}
    result = [-float(rank.get(token, len(groups))) for token in vocabulary.tokens]
    given = dataclasses.replace(vocabulary, scores=np.array(result, np.float32))
    check_made_by_scores(groups, merges_by_score(given))
    return result


def tied(merges: Sequence[Merge]) -> list[list[Merge]]:
    """The merges in the shortest runs that share no token made; tokens made in one run have one score."""
    last = {left + right: index for index, (left, right) in enumerate(merges)}
    groups: list[list[Merge]] = []
    end = -1
    for index, (left, right) in enumerate(merges):
        if index > end:
            groups.append([])
        groups[-1].append((left, right))
        end = max(end, last[left + right])
    return groups


def check_made_by_scores(groups: list[list[Merge]], expected: list[Merge]) -> None:
    """The merges are all those that there are, and equal scores are in the converters' order."""
    merges = [merge for group in groups for merge in group]
    if len(merges) != len(expected) or set(merges) != set(expected):
        raise TokenizerNotConvertible("merges", "they are not all the ways to make tokens from tokens")
    for group in groups:
        lengths = [(len(left), len(right)) for left, right in group]
        one_token = len({left + right for left, right in group}) == 1
        if not one_token and any(first < second for first, second in pairwise(lengths)):
            raise TokenizerNotConvertible("merges", "no scores of tokens give this order")
