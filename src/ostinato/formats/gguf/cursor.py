"""A read position in a mapped file that never passes its end."""

from __future__ import annotations

import mmap
import struct

from ostinato.formats.gguf import guards

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
LENGTH_BYTES = _U64.size  # every string starts with its length


class Cursor:
    """Reads little-endian values forward from `position`.

    `field` names what is being read; it appears in the `ModelFormatError` that a read past the end raises.
    """

    def __init__(self, buffer: mmap.mmap | bytes, file: str) -> None:
        self.buffer = buffer
        self.file = file
        self.size = len(buffer)
        self.position = 0

    @property
    def remaining(self) -> int:
        """Bytes from the position to the end of the file."""
        return self.size - self.position

    def advance(self, nbytes: int, field: str) -> int:
        """Steps over `nbytes` and returns where they start."""
        start = self.position
        guards.check_room(self.file, start, field, nbytes, self.size)
        self.position = start + nbytes
        return start

    def u32(self, field: str) -> int:
        value: int = _U32.unpack_from(self.buffer, self.advance(_U32.size, field))[0]
        return value

    def u64(self, field: str) -> int:
        value: int = _U64.unpack_from(self.buffer, self.advance(_U64.size, field))[0]
        return value

    def take(self, nbytes: int, field: str) -> bytes:
        """A copy of the next `nbytes`."""
        start = self.advance(nbytes, field)
        return self.buffer[start : start + nbytes]

    def name(self, field: str) -> str:
        """A metadata key or tensor name: at most 65,535 bytes of valid UTF-8."""
        start = self.position
        nbytes = self.u64(field)
        guards.check_name_length(self.file, start, field, nbytes)
        raw = self.take(nbytes, field)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            guards.refuse_name(self.file, start + LENGTH_BYTES, field, raw)

    def text(self, field: str) -> str:
        """A string value. Bytes that are no UTF-8 become lone surrogates, so that nothing is lost.

        `text.encode("utf-8", "surrogateescape")` gives the file's bytes back. Vocabularies need this: a
        byte-fallback token can be any byte.
        """
        return self.take(self.u64(field), field).decode("utf-8", "surrogateescape")

    def texts(self, count: int, field: str) -> list[str]:
        """`count` string values in a row, one tight loop: a vocabulary has hundreds of thousands."""
        buffer, size, position = self.buffer, self.size, self.position
        length_at = _U64.unpack_from
        values: list[str] = []
        append = values.append
        for _ in range(count):
            # The comparisons stand here as well as in the guard to save two calls a string.
            if position + LENGTH_BYTES > size:
                guards.check_room(self.file, position, field, LENGTH_BYTES, size)
            end = position + LENGTH_BYTES + length_at(buffer, position)[0]
            position += LENGTH_BYTES
            if end > size:
                guards.check_room(self.file, position, field, end - position, size)
            append(buffer[position:end].decode("utf-8", "surrogateescape"))
            position = end
        self.position = position
        return values
