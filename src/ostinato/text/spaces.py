"""What happens to the spaces around stretches of plain text before they are merged."""

from __future__ import annotations

import dataclasses
import enum

SPACE = "▁"
"""What SentencePiece vocabularies hold for a space."""

WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""Unicode's White_Space, which some markers swallow."""


class SpacePrefix(enum.StrEnum):
    """Where a SentencePiece model puts a space that the text doesn't have."""

    NEVER = "never"
    EACH = "each"  # before every stretch of plain text
    LACKING = "lacking"  # before every stretch that doesn't begin with one
    FIRST = "first"  # before a text that begins with plain text and not with a space


@dataclasses.dataclass(frozen=True)
class Spaces:
    """The rules of one tokenizer.

    `strip_before` and `strip_after` are the markers before and after which white space is dropped.
    """

    prefix: SpacePrefix = SpacePrefix.NEVER
    strip_before: frozenset[int] = frozenset()
    strip_after: frozenset[int] = frozenset()

    def prefixed(self, piece: str, *, first: bool) -> str:
        """The piece with its extra space; `first` when the whole text begins with it."""
        if self.prefix is SpacePrefix.NEVER or (self.prefix is SpacePrefix.FIRST and not first):
            return piece
        if self.prefix is not SpacePrefix.EACH and piece.startswith((" ", SPACE)):
            return piece
        return " " + piece

    def stripped(self, piece: str, before: int | None, after: int | None) -> str:
        """The piece between two markers (or ends of the text), without what they swallow."""
        if before in self.strip_after:
            piece = piece.lstrip(WHITE_SPACE)
        if after in self.strip_before:
            piece = piece.rstrip(WHITE_SPACE)
        return piece
