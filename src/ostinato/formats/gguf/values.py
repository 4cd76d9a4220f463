"""Metadata values: scalars, strings and arrays, by the format's type numbers."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ostinato.formats.gguf import guards
from ostinato.formats.gguf.cursor import LENGTH_BYTES, Cursor
from ostinato.formats.gguf.metadata import MetadataValue, Numbers

BOOL, STRING, ARRAY = 7, 8, 9

# type number -> struct layout of one element; numpy reads the same codes. `enum gguf_metadata_value_type`
SCALARS: Mapping[int, struct.Struct] = MappingProxyType(
    {
        number: struct.Struct("<" + code)
        for number, code in zip((0, 1, 2, 3, 4, 5, 6, BOOL, 10, 11, 12), "BbHhIifBQqd", strict=True)
    }
)


# type number -> numpy's type for it, in an array as for a scalar alone
DTYPES: Mapping[int, np.dtype[Any]] = MappingProxyType(
    {
        number: np.dtype(np.bool_) if number == BOOL else np.dtype(layout.format)
        for number, layout in SCALARS.items()
    }
)


def read_value(cursor: Cursor, key: str) -> tuple[int, MetadataValue]:
    """The type number at the cursor, and the value of that type behind it."""
    at = cursor.position
    number = cursor.u32(f"{key}: type")
    if number == STRING:
        return number, cursor.text(key)
    if number == ARRAY:
        return number, _read_array(cursor, key)
    if number not in SCALARS:
        guards.refuse_value_type(cursor.file, at, f"{key}: type", number)
    return number, _read_scalar(cursor, key, number)


def _read_scalar(cursor: Cursor, key: str, number: int) -> int | float | bool:
    layout = SCALARS[number]
    at = cursor.advance(layout.size, key)
    value: int | float = layout.unpack_from(cursor.buffer, at)[0]
    if number == BOOL:
        guards.check_flag(cursor.file, at, key, int(value))
        return value != 0
    return value


def _read_array(cursor: Cursor, key: str) -> list[str] | Numbers:
    at = cursor.position
    number = cursor.u32(f"{key}: element type")
    guards.check_not_nested(cursor.file, at, f"{key}: element type", number == ARRAY)
    if number != STRING and number not in SCALARS:
        guards.refuse_value_type(cursor.file, at, f"{key}: element type", number)
    at = cursor.position
    count = cursor.u64(f"{key}: count")
    least = LENGTH_BYTES if number == STRING else SCALARS[number].size
    guards.check_count(cursor.file, at, f"{key}: count", count, least, cursor.remaining)
    return cursor.texts(count, key) if number == STRING else _read_numbers(cursor, key, number, count)


def _read_numbers(cursor: Cursor, key: str, number: int, count: int) -> Numbers:
    """`count` scalars in one copy, `[count]`: metadata outlives the mapping."""
    dtype = np.dtype(SCALARS[number].format)
    at = cursor.advance(count * dtype.itemsize, key)
    values: Numbers = np.frombuffer(cursor.buffer, dtype, count, at).copy()
    if number == BOOL:
        worst = int(values.argmax()) if count else 0
        guards.check_flag(cursor.file, at + worst, key, int(values[worst]) if count else 0)
        values = values.view(np.bool_)
    values.flags.writeable = False
    return values
