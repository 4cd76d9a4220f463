"""The checks that a GGUF file passes before any of its numbers is believed.

Each raises `ModelFormatError` or returns None; the reader calls them through this module, one call for
each rule of the format. `file`, `offset` and `field` only say where the checked value came from.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import NoReturn

from ostinato.errors.formats import ModelFormatError
from ostinato.formats.placed import Placed
from ostinato.ir.encoding import Encoding

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4  # GGML_MAX_DIMS
MAX_NAME_BYTES = 65_535  # the format's limit for keys; tensor names are held to the same
MAX_ALIGNMENT = 1 << 21  # a huge page: nothing gains from more
MAX_ELEMENTS = (1 << 63) - 1  # ggml counts elements and bytes in int64

_NOT_GGUF = "The file is not a GGUF file or its download was cut short; fetch it again."
_SWAP = "Convert the model to little-endian with gguf_convert_endian.py."
_CONVERT = "Convert the model again with a current llama.cpp."


def check_magic(file: str, magic: bytes) -> None:
    """The file starts with the four letters GGUF."""
    if magic != MAGIC:
        got = repr(magic) if magic else "an empty file"
        raise ModelFormatError(file, "magic", repr(MAGIC), got, 0, _NOT_GGUF)


def check_byte_order(file: str, offset: int, version: int) -> None:
    """The version reads as a small number; in a big-endian file it lies in the upper bytes."""
    if version and version & 0xFFFF == 0:
        raise ModelFormatError(file, "version", "a little-endian file", "a big-endian file", offset, _SWAP)


def check_version(file: str, offset: int, version: int) -> None:
    """Versions 2 and 3 share one layout; version 1 had 32-bit counts and is extinct."""
    if version not in VERSIONS:
        raise ModelFormatError(file, "version", "2 or 3", str(version), offset, _CONVERT)


def check_room(file: str, offset: int, field: str, nbytes: int, size: int) -> None:
    """`nbytes` from `offset` on lie inside a file of `size` bytes."""
    if nbytes > size - offset:
        left = max(size - offset, 0)
        raise ModelFormatError(file, field, f"{nbytes} bytes", f"{left} bytes to the end", offset)


def check_count(file: str, offset: int, field: str, count: int, least: int, room: int) -> None:
    """`count` items of at least `least` bytes each can fit into the `room` bytes that follow.

    A count is the one number that could make the reader allocate or loop far beyond the file's size.
    """
    if count * least > room:
        raise ModelFormatError(file, field, f"at most {room // least}", str(count), offset)


def check_name_length(file: str, offset: int, field: str, nbytes: int) -> None:
    """A key or tensor name has a name's length."""
    if nbytes > MAX_NAME_BYTES:
        raise ModelFormatError(file, field, f"at most {MAX_NAME_BYTES} bytes", f"{nbytes} bytes", offset)


def check_unique(file: str, offset: int, field: str, name: str, seen: Container[str]) -> None:
    """A metadata key or tensor name occurs once."""
    if name in seen:
        raise ModelFormatError(file, field, "a name not used before", repr(name), offset)


def check_not_nested(file: str, offset: int, field: str, is_array: bool) -> None:
    """The elements of an array are no arrays themselves; no known writer nests them."""
    if is_array:
        raise ModelFormatError(file, field, "an array of scalars or strings", "an array of arrays", offset)


def check_flag(file: str, offset: int, field: str, byte: int) -> None:
    """A bool is the byte 0 or 1; the format calls anything else invalid."""
    if byte > 1:
        raise ModelFormatError(file, field, "0 or 1", str(byte), offset)


def check_alignment(file: str, offset: int, field: str, alignment: object) -> None:
    """The alignment of tensor data is a power of two of sane size."""
    # `type`, not isinstance: a bool is no alignment
    if type(alignment) is not int or not _is_power_of_two(alignment) or alignment > MAX_ALIGNMENT:
        got = str(alignment) if isinstance(alignment, int) else type(alignment).__name__
        raise ModelFormatError(file, field, f"a power of two up to {MAX_ALIGNMENT}", got, offset)


def check_rank(file: str, offset: int, field: str, rank: int) -> None:
    """A tensor has one to four dimensions."""
    if not 1 <= rank <= MAX_DIMS:
        raise ModelFormatError(file, field, f"1 to {MAX_DIMS}", str(rank), offset)


def check_dims(file: str, offset: int, field: str, dims: Sequence[int]) -> None:
    """Every dimension is positive and the number of elements fits a signed 64-bit integer."""
    if min(dims) < 1 or prod(dims) > MAX_ELEMENTS:
        raise ModelFormatError(file, field, "positive sizes with a 63-bit product", str(tuple(dims)), offset)


def check_row(file: str, offset: int, field: str, row: int, encoding: Encoding) -> None:
    """A row is whole blocks of its encoding."""
    if row % encoding.block:
        raise ModelFormatError(
            file, field, f"a multiple of the {encoding} block of {encoding.block}", str(row), offset
        )


def check_aligned(file: str, offset: int, field: str, start: int, alignment: int) -> None:
    """A tensor starts at a multiple of the alignment within the data section."""
    if start % alignment:
        raise ModelFormatError(file, field, f"a multiple of {alignment}", str(start), offset)


def check_inside(file: str, offset: int, field: str, start: int, nbytes: int, size: int) -> None:
    """A tensor's bytes end within the file; `start` is absolute."""
    if start + nbytes > size:
        raise ModelFormatError(
            file, field, f"a tensor ending by byte {size}", f"bytes {start} to {start + nbytes}", offset
        )


def check_disjoint(file: str, tensors: Iterable[Placed]) -> None:
    """No two tensors share a byte."""
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    for before, tensor in pairwise(ordered):
        end = before.offset + before.nbytes
        if tensor.offset < end:
            raise ModelFormatError(
                file,
                f"{tensor.name}: offset",
                f"at least {end}, the end of {before.name}",
                str(tensor.offset),
                tensor.offset,
            )


def refuse_value_type(file: str, offset: int, field: str, number: int) -> NoReturn:
    """A metadata value has a type number outside the format's 0 to 12."""
    raise ModelFormatError(file, field, "a metadata value type, 0 to 12", str(number), offset)


def refuse_tensor_type(file: str, offset: int, field: str, number: int) -> NoReturn:
    """A tensor has a type number that ggml does not define, or no longer does."""
    raise ModelFormatError(file, field, "a ggml tensor type", str(number), offset, _CONVERT)


def refuse_name(file: str, offset: int, field: str, raw: bytes) -> NoReturn:
    """A key or tensor name is no valid UTF-8."""
    raise ModelFormatError(file, field, "valid UTF-8", repr(raw), offset)


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
