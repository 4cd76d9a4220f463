"""The byte alphabet of byte-level BPE: every byte stands for one printable character.

Source: `bytes_to_unicode` in OpenAI's GPT-2 encoder. Printable Latin-1 bytes stand for themselves, the
other 68 for U+0100 and up, in order; so a space is 'Ġ' and a newline 'Ċ'.
"""

from __future__ import annotations


def _alphabet() -> list[str]:
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


BYTE_CHARS: list[str] = _alphabet()
"""The character of each byte, indexed by the byte."""

_TO_LATIN1 = {ord(char): byte for byte, char in enumerate(BYTE_CHARS)}
# A character that is no byte's must not slip through as the Latin-1 character it may happen to be.
_TO_LATIN1.update({code: 0xFFFF for code in range(256) if code not in _TO_LATIN1})


def token_to_bytes(token: str) -> bytes:
    """The bytes a byte-level token stands for.

    A token with a character outside the alphabet was added as plain text and stands for its own UTF-8.
    """
    try:
        return token.translate(_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8", "surrogateescape")
