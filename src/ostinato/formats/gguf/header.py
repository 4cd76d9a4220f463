"""Everything before the tensor data: magic, version, counts, metadata and the tensor directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ostinato.formats.gguf import guards
from ostinato.formats.gguf.cursor import Cursor
from ostinato.formats.gguf.directory import LEAST_ENTRY_BYTES, GgufTensor, read_directory
from ostinato.formats.gguf.metadata import MetadataValue
from ostinato.formats.gguf.values import DTYPES, read_value

ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
LEAST_PAIR_BYTES = 8 + 4 + 1  # key length, value type, one-byte value


@dataclass(frozen=True, slots=True)
class Header:
    """The parsed head of a file; `nbytes` is its length without the padding before the data."""

    version: int
    alignment: int
    metadata: dict[str, MetadataValue]
    widths: dict[str, np.dtype[Any]]  # of the metadata's numeric scalars
    tensors: dict[str, GgufTensor]
    nbytes: int


def read_header(cursor: Cursor) -> Header:
    """Parses from the file's first byte; raises `ModelFormatError` at the first broken rule.

    Allocates in proportion to the bytes read, whatever counts and lengths the file claims.
    """
    guards.check_magic(cursor.file, cursor.take(min(len(guards.MAGIC), cursor.size), "magic"))
    version = _read_version(cursor)

    tensors_at = cursor.position
    tensor_count = cursor.u64("tensor_count")
    pairs_at = cursor.position
    pair_count = cursor.u64("metadata_count")
    room = cursor.remaining
    guards.check_count(cursor.file, tensors_at, "tensor_count", tensor_count, LEAST_ENTRY_BYTES, room)
    guards.check_count(cursor.file, pairs_at, "metadata_count", pair_count, LEAST_PAIR_BYTES, room)

    metadata, widths = _read_metadata(cursor, pair_count)
    # the guard admits integers only
    alignment: int = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)  # type: ignore[assignment]
    tensors = read_directory(cursor, tensor_count, alignment)
    return Header(version, alignment, metadata, widths, tensors, cursor.position)


def _read_version(cursor: Cursor) -> int:
    at = cursor.position
    version = cursor.u32("version")
    guards.check_byte_order(cursor.file, at, version)
    guards.check_version(cursor.file, at, version)
    return version


def _read_metadata(cursor: Cursor, count: int) -> tuple[dict[str, MetadataValue], dict[str, np.dtype[Any]]]:
    metadata: dict[str, MetadataValue] = {}
    widths: dict[str, np.dtype[Any]] = {}
    for index in range(count):
        at = cursor.position
        key = cursor.name(f"metadata[{index}].key")
        guards.check_unique(cursor.file, at, f"metadata[{index}].key", key, metadata)
        at = cursor.position
        number, metadata[key] = read_value(cursor, key)
        if number in DTYPES:
            widths[key] = DTYPES[number]
        if key == ALIGNMENT_KEY:
            guards.check_alignment(cursor.file, at, key, metadata[key])
    return metadata, widths
