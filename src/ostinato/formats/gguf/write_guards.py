"""The checks that a model passes before it is written, beyond those that a reader makes.

Each raises `InvalidModelContent` or, where it is a rule of reading too, `ModelFormatError`, which
`write_gguf` turns into the same; the writer calls them through this module.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ostinato.errors.formats import InvalidModelContent
from ostinato.formats.gguf import split
from ostinato.formats.gguf.metadata import Metadata
from ostinato.ir.encoding import Encoding

LEAST_ALIGNMENT = 8  # the specification's; readers take less
MAX_TENSOR_NAME = 63  # bytes that ggml has room for; our reader takes more

_VALUES = "text, a bool, a number, a list of texts, or a numpy array of one dimension"


def check_name(file: str, field: str, name: str, most: int) -> None:
    """A key or tensor name is valid UTF-8 of at most `most` bytes."""
    try:
        nbytes = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidModelContent(file, field, "a name in valid Unicode", ascii(name)) from None
    if nbytes > most:
        raise InvalidModelContent(file, field, f"a name of at most {most} bytes", f"{nbytes} bytes")


def check_alignment_agrees(file: str, field: str, stated: int, asked: int | None) -> None:
    """The alignment is the specification's multiple of 8, and there is one."""
    if stated % LEAST_ALIGNMENT:
        raise InvalidModelContent(file, field, f"a multiple of {LEAST_ALIGNMENT}", str(stated))
    if asked not in (None, stated):
        raise InvalidModelContent(file, field, f"{asked}, the alignment asked for", str(stated))


def check_split(path: Path, metadata: Mapping[str, Any]) -> None:
    """A file named as a part has the metadata of that part, and no other file has any."""
    file, name = str(path), split.PartName.of(path)
    keys = (split.NUMBER_KEY, split.COUNT_KEY, split.TENSORS_KEY)
    numbers = {key: metadata[key] for key in keys if key in metadata}
    plain = Metadata({k: int(v) if isinstance(v, np.integer) else v for k, v in numbers.items()}, file)
    count = plain.integer(split.COUNT_KEY, default=None)
    if name is None:
        split.check_whole(file, count)
        return
    split.check_count(file, name.count, count)
    split.check_number(file, plain, name.number - 1)
    plain.integer(split.TENSORS_KEY)  # asked for in the first part, usual in the others


def check_encoding(file: str, name: str, encoding: Encoding, known: Container[Encoding]) -> None:
    """The encoding has a number in the format."""
    if encoding not in known:
        raise InvalidModelContent(file, f"{name}: type", "an encoding that ggml has", str(encoding))


def check_length(file: str, name: str, expected: int, nbytes: int) -> None:
    """A tensor has the bytes that its shape and encoding take."""
    if nbytes != expected:
        raise InvalidModelContent(file, f"{name}: data", f"{expected} bytes", f"{nbytes} bytes")


def refuse_data(file: str, name: str, data: object) -> NoReturn:
    """A tensor's data is neither bytes nor a function."""
    expected = "bytes, an array, or a function that gives them in pieces"
    raise InvalidModelContent(file, f"{name}: data", expected, type(data).__name__)


def refuse_text(file: str, key: str, text: str) -> NoReturn:
    """A string has surrogates that no bytes were decoded to."""
    raise InvalidModelContent(file, key, "text that can be encoded", ascii(text))


def refuse_value(file: str, key: str, value: object) -> NoReturn:
    """A value is of a kind that the format has no type for."""
    got = f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
    if isinstance(value, list | tuple):
        got = f"a {got} of other things than texts; numbers go into a numpy array"
    raise InvalidModelContent(file, key, _VALUES, got)


def refuse_number(file: str, key: str, dtype: np.dtype[Any], value: object) -> NoReturn:
    """A number does not fit its type."""
    raise InvalidModelContent(file, key, f"a number that {dtype} can hold", str(value))


def refuse_dtype(file: str, key: str, dtype: np.dtype[Any]) -> NoReturn:
    """The format has no number of this width."""
    raise InvalidModelContent(file, key, "8 to 64-bit integers, float32, float64 or bool", str(dtype))
