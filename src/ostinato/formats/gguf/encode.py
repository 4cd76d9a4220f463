"""Python values as metadata bytes, and the rule that gives each its type in the file.

| value | type |
| --- | --- |
| bool | bool |
| int | uint32 where it fits, else int64 if negative, else uint64 |
| float | float32, rounded |
| str | string, by `surrogateescape`: the bytes of a string that was read come back |
| list or tuple of str | array of strings |
| numpy scalar | its own width; float16 and complex have none in the format |
| numpy array of one dimension | array of its own width |

So a width that a reader insists on is said with numpy: `np.uint64(7)`, `np.array([1, 2], np.int32)`. The
format's own keys, the alignment and the numbers of a split, have their fixed widths.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.gguf import write_guards
from ostinato.formats.gguf.header import ALIGNMENT_KEY
from ostinato.formats.gguf.split import COUNT_KEY, NUMBER_KEY, TENSORS_KEY
from ostinato.formats.gguf.values import ARRAY, BOOL, DTYPES, SCALARS, STRING

WritableValue: TypeAlias = str | int | float | bool | Sequence[str] | np.generic | NDArray[Any]

UINT16, UINT32, INT32, FLOAT32, UINT64, INT64 = 2, 4, 5, 6, 10, 11
# Keys that llama.cpp reads in one width only, whatever number they are given as.
_FIXED = {ALIGNMENT_KEY: UINT32, NUMBER_KEY: UINT16, COUNT_KEY: UINT16, TENSORS_KEY: INT32}
_NUMBERS = {(dtype.kind, dtype.itemsize): number for number, dtype in DTYPES.items()}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def encode_text(file: str, field: str, text: str) -> bytes:
    """Length and bytes of a string: those that it was decoded from, or its UTF-8."""
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        write_guards.refuse_text(file, field, text)
    return _U64.pack(len(raw)) + raw


def encode_value(file: str, key: str, value: WritableValue) -> bytes:
    """Type number and bytes of a metadata value, by the table above.

    Raises `InvalidModelContent` with `field` = the key for a value that has no place in the table.
    """
    if key in _FIXED and isinstance(value, int | np.integer):
        return _scalar(file, key, _FIXED[key], int(value))
    # numpy first: its float64 is a float as well.
    if isinstance(value, np.ndarray):
        return _array(file, key, value)
    if isinstance(value, np.generic) and not isinstance(value, str):
        return _scalar(file, key, _number_of(file, key, value.dtype), value.item())
    if isinstance(value, bool):
        return _scalar(file, key, BOOL, value)
    if isinstance(value, int):
        narrow = 0 <= value < 1 << 32
        return _scalar(file, key, UINT32 if narrow else INT64 if value < 0 else UINT64, value)
    if isinstance(value, float):
        return _scalar(file, key, FLOAT32, value)
    if isinstance(value, str):
        return _U32.pack(STRING) + encode_text(file, key, value)
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        write_guards.refuse_value(file, key, value)
    body = b"".join(encode_text(file, key, each) for each in value)
    return _U32.pack(ARRAY) + _U32.pack(STRING) + _U64.pack(len(value)) + body


def _scalar(file: str, key: str, number: int, value: Any) -> bytes:
    try:
        return _U32.pack(number) + SCALARS[number].pack(value)
    except (struct.error, OverflowError):
        write_guards.refuse_number(file, key, DTYPES[number], value)


def _array(file: str, key: str, array: NDArray[Any]) -> bytes:
    if array.ndim != 1:
        write_guards.refuse_value(file, key, array)
    number = _number_of(file, key, array.dtype)
    body = array.astype(DTYPES[number], copy=False).tobytes()  # little-endian, whatever it was
    return _U32.pack(ARRAY) + _U32.pack(number) + _U64.pack(array.size) + body


def _number_of(file: str, key: str, dtype: np.dtype[Any]) -> int:
    number = _NUMBERS.get((dtype.kind, dtype.itemsize))
    if number is None:
        write_guards.refuse_dtype(file, key, dtype)
    return number
