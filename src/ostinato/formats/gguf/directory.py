"""The tensor directory: names, shapes, encodings and places, checked against each other and the file."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ostinato.formats.gguf import guards
from ostinato.formats.gguf.cursor import Cursor
from ostinato.formats.gguf.tensor_types import TENSOR_TYPES
from ostinato.ir.encoding import Encoding

# name length, rank, one dimension, type, offset: the least bytes of an entry
LEAST_ENTRY_BYTES = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor's place in a file.

    `shape` is row-major, ggml's `ne` reversed: a weight matrix is `(out, in)`, the last dimension is
    contiguous and a whole number of the encoding's blocks. `offset` counts from the start of its file, which
    is number `part` of a split model's parts, from 0.
    """

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    offset: int
    nbytes: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class _Entry:
    """A directory entry before the start of the data section is known."""

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    start: int  # within the data section
    start_at: int  # where the file says so


def read_directory(cursor: Cursor, count: int, alignment: int) -> dict[str, GgufTensor]:
    """The `count` entries at the cursor, in file order; leaves the cursor at the directory's end."""
    entries: dict[str, _Entry] = {}
    for index in range(count):
        at = cursor.position
        name = cursor.name(f"tensor[{index}].name")
        guards.check_unique(cursor.file, at, f"tensor[{index}].name", name, entries)
        entries[name] = _read_entry(cursor, name)

    data_start = -(-cursor.position // alignment) * alignment
    tensors = {name: _place(cursor, entry, data_start, alignment) for name, entry in entries.items()}
    guards.check_disjoint(cursor.file, tensors.values())
    return tensors


def _read_entry(cursor: Cursor, name: str) -> _Entry:
    file = cursor.file
    at = cursor.position
    rank = cursor.u32(f"{name}: n_dims")
    guards.check_rank(file, at, f"{name}: n_dims", rank)

    dims_at = cursor.position
    dims = [cursor.u64(f"{name}: dims") for _ in range(rank)]  # ggml's ne: the contiguous dimension first
    guards.check_dims(file, dims_at, f"{name}: dims", dims)

    at = cursor.position
    number = cursor.u32(f"{name}: type")
    encoding = TENSOR_TYPES.get(number)
    if encoding is None:
        guards.refuse_tensor_type(file, at, f"{name}: type", number)
    guards.check_row(file, dims_at, f"{name}: dims", dims[0], encoding)

    at = cursor.position
    return _Entry(name, tuple(reversed(dims)), encoding, cursor.u64(f"{name}: offset"), at)


def _place(cursor: Cursor, entry: _Entry, data_start: int, alignment: int) -> GgufTensor:
    field = f"{entry.name}: offset"
    guards.check_aligned(cursor.file, entry.start_at, field, entry.start, alignment)
    offset = data_start + entry.start
    nbytes = prod(entry.shape[:-1]) * entry.encoding.row_bytes(entry.shape[-1])
    guards.check_inside(cursor.file, entry.start_at, field, offset, nbytes, cursor.size)
    return GgufTensor(entry.name, entry.shape, entry.encoding, offset, nbytes)
