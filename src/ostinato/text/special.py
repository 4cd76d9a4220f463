"""Finding the tokens that are matched whole in a text, before anything is merged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

Span = tuple[int, int]
"""Start and end of a stretch of text, in characters, the end exclusive."""


class SpecialTokens:
    """Matches markers and literals, leftmost first and the longest at each place.

    Args:
        markers: texts that are tokens only in trusted text.
        literals: texts that are tokens in any text.
    """

    def __init__(self, markers: Mapping[str, int], literals: Mapping[str, int]) -> None:
        self.markers = dict(markers)
        self._everywhere = _Matcher(literals)
        self._trusted = _Matcher({**literals, **markers})

    def split(
        self, text: str, *, parse_special: bool, untrusted: Sequence[Span] = ()
    ) -> Iterator[tuple[str, int | None]]:
        """Cuts a text into `(piece, None)` for plain text and `(piece, id)` for tokens matched whole.

        Args:
            text: the text.
            parse_special: match markers too.
            untrusted: stretches in which markers don't count, sorted and disjoint; a marker that so much
                as touches one is plain text.
        """
        matcher = self._trusted if parse_special else self._everywhere
        start = 0
        for begin, end, token in matcher.finditer(text, self.markers, untrusted):
            if begin > start:
                yield text[start:begin], None
            yield text[begin:end], token
            start = end
        if start < len(text):
            yield text[start:], None


def without_surrogates(text: str) -> str:
    """The text with every surrogate, which UTF-8 can't hold, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # One for one, so that positions in the text stay what they were.
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    return text


def touches(begin: int, end: int, spans: Sequence[Span], hint: int) -> tuple[bool, int]:
    """Whether `[begin, end)` overlaps one of the sorted spans.

    Returns the answer and the index of the first span that ends after `begin`: the hint for a next
    question with a larger `begin`.
    """
    while hint < len(spans) and spans[hint][1] <= begin:
        hint += 1
    return hint < len(spans) and spans[hint][0] < end, hint


class _Matcher:
    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = dict(ids)
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        # Tried from the longest down, so that the longest wins.
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._firsts = re.compile("[" + "".join(map(re.escape, lengths)) + "]") if lengths else None

    def finditer(
        self, text: str, markers: Mapping[str, int], untrusted: Sequence[Span]
    ) -> Iterator[tuple[int, int, int]]:
        if self._firsts is None:
            return
        position, hint = 0, 0
        while candidate := self._firsts.search(text, position):
            begin = candidate.start()
            position = begin + 1
            for length in self._lengths[text[begin]]:
                piece = text[begin : begin + length]
                token = self._ids.get(piece)
                if token is None or len(piece) != length:
                    continue
                if untrusted and piece in markers:
                    foreign, hint = touches(begin, begin + length, untrusted, hint)
                    if foreign:
                        continue
                position = begin + length
                yield begin, position, token
                break
