"""The wire format of protocol buffers, as far as a tokenizer.model needs it.

Source: the encoding page of the protocol buffers documentation. A message is a sequence of fields, each a
varint key (number * 8 + wire type) and a value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ostinato.errors.text import TokenizerFormatError

Value = int | bytes

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def fields(data: bytes, file: str) -> Iterator[tuple[int, Value]]:
    """The fields of a message in order: number, and an integer or the raw bytes of anything else.

    Raises:
        TokenizerFormatError: the bytes are no message, or end early.
    """
    position = 0
    while position < len(data):
        key, position = _varint(data, position, file)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _varint(data, position, file)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = _varint(data, position, file)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise TokenizerFormatError("the file", "a protocol buffer", f"wire type {kind}", file=file)
        check_room(position, length, len(data), file)
        yield number, data[position : position + length]
        position += length


def check_room(position: int, length: int, size: int, file: str) -> None:
    """A value ends where its message does, or before."""
    if length > size - position:
        raise TokenizerFormatError("the file", f"{length} more bytes", f"{size - position}", file=file)


def float32(value: Value, file: str) -> float:
    """A field as a float."""
    if not isinstance(value, bytes) or len(value) != 4:
        raise TokenizerFormatError("the file", "a 32-bit number", repr(value), file=file)
    number: float = struct.unpack("<f", value)[0]
    return number


def message(value: Value, file: str) -> bytes:
    """A field as the bytes of a message or text."""
    if not isinstance(value, bytes):
        raise TokenizerFormatError("the file", "a message or text", "an integer", file=file)
    return value


def integer(value: Value, file: str) -> int:
    """A field as a signed 32-bit integer."""
    if not isinstance(value, int):
        raise TokenizerFormatError("the file", "an integer", "bytes", file=file)
    return (value & 0xFFFF_FFFF) - ((value & 0x8000_0000) << 1)


def _varint(data: bytes, position: int, file: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        check_room(position, 1, len(data), file)
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise TokenizerFormatError("the file", "an integer of at most 10 bytes", "a longer one", file=file)
