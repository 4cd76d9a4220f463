"""Which characters of a rendered chat template came from its messages.

A template turns messages into one string in which its own markers, such as "<|im_end|>", must become
tokens, while the same text inside a message must not: whoever wrote the message would end their turn and
speak as the system.

So the template is rendered twice: as is, and with characters of the messages replaced by stand-ins from
Unicode's private planes. Stand-ins survive trimming, slicing, joining and moving about; wherever one
turns up in the second rendering, the same place in the first came from a message.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

from ostinato.text.special import Span

_PRIVATE = range(0xF0000, 0xFFFFE)

# What a template tells roles and kinds by; whoever fills them in speaks for the application.
TRUSTED_KEYS = frozenset({"role", "type"})


def leaves(value: Any, key: Any = None) -> Iterator[str]:
    """The untrusted strings in messages or tools."""
    if isinstance(value, str):
        if key not in TRUSTED_KEYS:
            yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from leaves(item, name)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)


def map_leaves(value: Any, change: Callable[[str], str], key: Any = None) -> Any:
    """A copy of messages or tools with every untrusted string changed."""
    if isinstance(value, str):
        return value if key in TRUSTED_KEYS else change(value)
    if isinstance(value, Mapping):
        return {name: map_leaves(item, change, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_leaves(item, change) for item in value]
    return value


class StandIns:
    """A one-to-one exchange of the characters that markers are made of for private ones.

    Args:
        markers: the texts that must not be taken for tokens inside messages.
        taken: text that the private characters must not occur in.

    Raises:
        ValueError: the text holds so many private characters that none are left.
    """

    def __init__(self, markers: Iterable[str], taken: Iterable[str]) -> None:
        self.markers = frozenset(markers)
        self._markers = sorted(self.markers, key=len, reverse=True)
        # JSON escapes quotes, backslashes and control characters, and templates trim white space:
        # exchanged, they would come out differently. Every marker has other characters too.
        alphabet = sorted(
            {char for marker in self._markers for char in marker if not char.isspace() and char not in '"\\'}
        )
        first = _free_block({ord(char) for text in taken for char in set(text)}, len(alphabet))
        self._private = {char: chr(first + index) for index, char in enumerate(alphabet)}
        self._public = {ord(private): char for char, private in self._private.items()}
        self._exchange = str.maketrans(self._private)
        self._firsts = {marker[0] for marker in self._markers}
        self._lasts = {marker[-1] for marker in self._markers}
        self._whole = re.compile("|".join(map(re.escape, self._markers)) or r"(?!)")

    def hide_all(self, words: Iterable[str], known: Iterable[str] = ()) -> Callable[[str], str]:
        """Exchanges every character, but for `words`, by which the template tells things apart.

        Of these only the ones that can't be part of a marker are left, in whatever surroundings; and of
        the markers, those that are `known`.
        """
        known = frozenset(known)
        others = "\0" + "\0".join(self.markers - known) + "\0"
        kept = [word for word in {*words, *known} if not self._may_be_part(word, others)]
        if not kept:
            return lambda text: text.translate(self._exchange)
        pattern = re.compile("|".join(map(re.escape, sorted(kept, key=len, reverse=True))))

        def change(text: str) -> str:
            pieces, start = [], 0
            for match in pattern.finditer(text):
                pieces += [text[start : match.start()].translate(self._exchange), match[0]]
                start = match.end()
            return "".join([*pieces, text[start:].translate(self._exchange)])

        return change

    def _may_be_part(self, word: str, markers: str) -> bool:
        """Whether some marker can overlap the word; `markers` has them all with "\\0" around each."""
        return (
            word in markers
            or any(match[0] != word for match in self._whole.finditer(word))
            or any(char in self._firsts and f"\0{word[n:]}" in markers for n, char in enumerate(word))
            or any(char in self._lasts and f"{word[: n + 1]}\0" in markers for n, char in enumerate(word))
        )

    def hide_markers(self, text: str, known: Container[str] = ()) -> str:
        """Exchanges only whole markers, and what could become one together with what stands beside it.

        Markers that are `known` are left as they are.
        """
        core = text.strip()
        start = len(text) - len(text.lstrip())
        spans = [match.span() for match in self._whole.finditer(text) if match[0] not in known]
        ends = [n for marker in self._markers for n in range(1, len(marker)) if core.startswith(marker[-n:])]
        begins = [n for marker in self._markers for n in range(1, len(marker)) if core.endswith(marker[:n])]
        if ends:
            spans.append((start, start + max(ends)))
        if begins:
            spans.append((start + len(core) - max(begins), start + len(core)))
        chars = list(text)
        for begin, end in spans:
            chars[begin:end] = [self._private.get(char, char) for char in chars[begin:end]]
        return "".join(chars)

    def show(self, text: str) -> str:
        """The text with every stand-in changed back."""
        return text.translate(self._public)

    def spans(self, text: str) -> list[Span]:
        """The stretches of stand-ins, in order."""
        if not self._private:
            return []
        pattern = re.compile("[" + "".join(self._private.values()) + "]+")
        return [match.span() for match in pattern.finditer(text)]


def _free_block(used: set[int], size: int) -> int:
    """The first of `size` private characters in a row that are not used; a random one, so not to be met."""
    for _ in range(64):
        first = _PRIVATE.start + secrets.randbelow(len(_PRIVATE) - size)
        if used.isdisjoint(range(first, first + size)):
            return first
    raise ValueError("the text leaves no private characters free")
