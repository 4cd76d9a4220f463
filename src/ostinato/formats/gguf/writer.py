"""Writing GGUF files, one tensor at a time."""

from __future__ import annotations

import operator
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ostinato.errors.formats import InvalidModelContent, ModelFormatError
from ostinato.formats.gguf import guards, write_guards
from ostinato.formats.gguf.encode import WritableValue, encode_text, encode_value
from ostinato.formats.gguf.header import ALIGNMENT_KEY, DEFAULT_ALIGNMENT
from ostinato.formats.gguf.tensor_types import TENSOR_TYPES
from ostinato.host.atomic import replacing
from ostinato.ir.encoding import Encoding

VERSION = 3

Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[Any]
TensorData: TypeAlias = Buffer | Callable[[], Iterable[Buffer]]

_TYPE_NUMBERS = {encoding: number for number, encoding in TENSOR_TYPES.items()}


class TensorSource(NamedTuple):
    """A tensor to write: `shape` row-major, `data` its encoded bytes, or a function that makes them.

    The function is called when the tensor's turn comes and gives the bytes in pieces of any size. An array's
    bytes are taken as they are, whatever its dtype, in little-endian order.
    """

    name: str
    shape: Sequence[int]
    encoding: Encoding
    data: TensorData


@dataclass(frozen=True, slots=True)
class _Placed:
    """A tensor that may be written, and where; `dims` in ggml's order, contiguous first."""

    name: str
    dims: tuple[int, ...]
    type: int
    start: int  # within the data section
    nbytes: int
    data: TensorData


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, WritableValue],
    tensors: Iterable[tuple[str, Sequence[int], Encoding, TensorData]],
    *,
    alignment: int | None = None,
) -> None:
    """Writes a GGUF file of version 3, whole or not at all; a file at `path` is replaced at the end.

    `encode` has the rule for the types of metadata. `file.metadata.typed()` of an open file gives values that
    are written as they were read. `alignment` None means the metadata's `general.alignment`, or 32. A path
    named as part of a split model wants the split's metadata, and only such a path may have it. Beyond what
    the caller holds, at most one tensor, or one piece of it, is in memory at a time. The file's mode
    is 0666 less the umask.

    Raises:
        InvalidModelContent: Something breaks a rule of the format, and nothing has been written; or a
            function has given more or fewer bytes than its tensor has, and the file at `path` is as it was.
        OSError: The folder cannot be written, or the disk is full.
    """
    path = Path(path)
    file = str(path)
    sources = list(tensors)  # outside the `try`: what the caller's iterator raises is its own
    try:
        alignment = _alignment(file, metadata, alignment)
        placed = _place(file, sources, alignment)
        head = _head(path, metadata, placed, alignment)
    except ModelFormatError as error:  # of the reader's own guards: what is written can be read
        raise InvalidModelContent(file, error.field, error.expected, error.got) from error
    with replacing(path, mode=0o666) as out:
        out.write(head)
        for tensor in placed:
            _write(out, file, tensor)
            out.write(bytes(-tensor.nbytes % alignment))


def _alignment(file: str, metadata: Mapping[str, WritableValue], asked: int | None) -> int:
    stated: object = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT if asked is None else asked)
    if isinstance(stated, np.integer):
        stated = int(stated)
    guards.check_alignment(file, 0, ALIGNMENT_KEY, stated)
    alignment = cast(int, stated)  # the guard admits no other
    write_guards.check_alignment_agrees(file, ALIGNMENT_KEY, alignment, asked)
    return alignment


def _place(
    file: str, tensors: Iterable[tuple[str, Sequence[int], Encoding, TensorData]], alignment: int
) -> list[_Placed]:
    """The tensors, checked one by one, each at the first aligned place behind the one before."""
    placed: dict[str, _Placed] = {}
    start = 0
    for name, shape, encoding, data in tensors:
        write_guards.check_name(file, f"tensor[{len(placed)}].name", name, write_guards.MAX_TENSOR_NAME)
        guards.check_unique(file, 0, f"tensor[{len(placed)}].name", name, placed)
        dims = tuple(operator.index(dim) for dim in reversed(shape))
        guards.check_rank(file, 0, f"{name}: n_dims", len(dims))
        guards.check_dims(file, 0, f"{name}: dims", dims)
        write_guards.check_encoding(file, name, encoding, _TYPE_NUMBERS)
        guards.check_row(file, 0, f"{name}: dims", dims[0], encoding)
        nbytes = prod(dims[1:]) * encoding.row_bytes(dims[0])
        if not callable(data):
            write_guards.check_length(file, name, nbytes, _length(file, name, data))
        placed[name] = _Placed(name, dims, _TYPE_NUMBERS[encoding], start, nbytes, data)
        start += nbytes + -nbytes % alignment
    return list(placed.values())


def _head(
    path: Path, metadata: Mapping[str, WritableValue], placed: Sequence[_Placed], alignment: int
) -> bytes:
    """Everything before the data, with the padding where there is data."""
    file = str(path)
    pairs = dict(metadata)
    if alignment != DEFAULT_ALIGNMENT:
        pairs.setdefault(ALIGNMENT_KEY, alignment)
    write_guards.check_split(path, pairs)

    head = bytearray(guards.MAGIC + struct.pack("<IQQ", VERSION, len(placed), len(pairs)))
    for key, value in pairs.items():
        write_guards.check_name(file, key, key, guards.MAX_NAME_BYTES)
        head += encode_text(file, key, key)
        head += encode_value(file, key, value)
    for tensor in placed:
        rank = len(tensor.dims)
        head += encode_text(file, tensor.name, tensor.name)
        head += struct.pack(f"<I{rank}QIQ", rank, *tensor.dims, tensor.type, tensor.start)
    return bytes(head) + bytes(-len(head) % alignment if placed else 0)


def _length(file: str, name: str, data: Buffer) -> int:
    if isinstance(data, np.ndarray):
        return data.nbytes
    try:
        return memoryview(data).nbytes
    except TypeError:
        write_guards.refuse_data(file, name, data)


def _write(out: BinaryIO, file: str, tensor: _Placed) -> None:
    """The tensor's bytes, exactly as many as it has."""
    written = 0
    for piece in tensor.data() if callable(tensor.data) else (tensor.data,):
        raw = _raw(piece)
        written += len(raw)
        if written > tensor.nbytes:  # before it is written, and before a function that never ends goes on
            break
        out.write(raw)
    write_guards.check_length(file, tensor.name, tensor.nbytes, written)


def _raw(piece: Buffer) -> memoryview:
    """The piece's bytes in order; copied only where they don't lie so."""
    if isinstance(piece, np.ndarray):
        little = piece.astype(piece.dtype.newbyteorder("<"), copy=False)
        return np.ascontiguousarray(little).reshape(-1).view(np.uint8).data
    view = memoryview(piece)
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
