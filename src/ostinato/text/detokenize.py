"""Tokens to text as they arrive, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Container


class StreamDecoder:
    """Turns tokens into text one by one; mutable, for one stream.

    All pushes and `finish` together give the same text as decoding all tokens at once.

    Args:
        token_bytes: the bytes of a token.
        skip: ids that give no text.
        strip_space: drop one space at the very start of the text.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], *, skip: Container[int], strip_space: bool
    ) -> None:
        self._token_bytes = token_bytes
        self._skip = skip
        self._strip_space = strip_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes; often one token's text, sometimes none.

        Raises:
            UnknownToken: the id is outside the vocabulary; the decoder is as before.
        """
        data = self._token_bytes(token_id)
        if token_id in self._skip or not data:
            return ""
        if self._strip_space:
            self._strip_space = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def finish(self) -> str:
        """What is left at the end of the stream: U+FFFD where a character stayed incomplete."""
        return self._utf8.decode(b"", final=True)
