"""A safetensors file's header: names, dtypes, shapes and places, checked against each other and the file.

Layout: the header's length (u64, little-endian), the header (a JSON object), the data. Tensors are
row-major and tile the data: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ostinato.errors.formats import UnsupportedEncoding
from ostinato.formats.safetensors import guards
from ostinato.formats.safetensors.dtypes import BITS, WEIGHT_ENCODINGS
from ostinato.formats.safetensors.strictjson import JsonValue, parse_object
from ostinato.ir.encoding import Encoding

METADATA_KEY = "__metadata__"


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """One tensor's place in a checkpoint.

    `shape` is row-major, `[]` for a scalar, and may have zeros. `dtype` is the format's name; `offset`
    counts from the start of `file`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int

    @property
    def encoding(self) -> Encoding:
        """F32, F16 or BF16. Raises `UnsupportedEncoding` with tensor and dtype for any other."""
        encoding = WEIGHT_ENCODINGS.get(self.dtype)
        if encoding is None:
            raise UnsupportedEncoding(str(self.file), self.name, self.dtype)
        return encoding


def read_header(mapping: mmap.mmap, path: Path) -> dict[str, SafeTensor]:
    """The tensors of a mapped file, in the header's order; `ModelFormatError` at the first broken rule."""
    file, size = str(path), len(mapping)
    length = int.from_bytes(mapping[: guards.LENGTH_BYTES], "little")
    guards.check_header_length(file, length, size)
    start = guards.LENGTH_BYTES + length  # of the data
    guards.check_header_start(file, mapping[guards.LENGTH_BYTES : min(start, guards.LENGTH_BYTES + 1)])
    header = parse_object(mapping[guards.LENGTH_BYTES : start], file, "header", start=guards.LENGTH_BYTES)
    guards.check_metadata(file, header.pop(METADATA_KEY, None))

    tensors = {name: _read_entry(path, name, entry, start, size) for name, entry in header.items()}
    ordered = sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes))
    guards.check_disjoint(file, ordered)
    guards.check_no_holes(file, ordered, start, size)
    return tensors


def _read_entry(path: Path, name: str, entry: JsonValue, start: int, size: int) -> SafeTensor:
    """The tensor that a header's entry describes; keys beside the format's three are ignored."""
    file = str(path)
    guards.check_name(file, name)
    guards.check_object(file, name, entry)
    assert isinstance(entry, dict)
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    guards.check_dtype(file, f"{name}: dtype", dtype, BITS)
    guards.check_shape(file, f"{name}: shape", shape)
    guards.check_range(file, f"{name}: data_offsets", offsets)
    return _place(path, name, dtype, shape, offsets, start, size)  # type: ignore[arg-type]  # as checked


def _place(
    path: Path, name: str, dtype: str, shape: list[int], offsets: list[int], start: int, size: int
) -> SafeTensor:
    file = str(path)
    guards.check_extent(file, f"{name}: shape", shape, BITS[dtype])
    bits = prod(shape) * BITS[dtype]
    guards.check_whole_bytes(file, f"{name}: shape", bits)
    begin, end = offsets
    guards.check_inside(file, f"{name}: data_offsets", end, size - start)
    guards.check_length(file, f"{name}: data_offsets", end - begin, bits // 8)
    return SafeTensor(name, dtype, tuple(shape), path, start + begin, end - begin)
