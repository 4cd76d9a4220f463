"""Lays GGUF files out field by field and remembers where each field lies, so that any one can be broken.

Pure `struct`, and nothing of the reader under test: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = dict(zip((U8, I8, U16, I16, U32, I32, F32, BOOL, U64, I64, F64), "BbHhIif?Qqd", strict=True))


@dataclass(frozen=True)
class Span:
    """Where a field lies: `size` bytes from `offset`; `number` says whether they are an integer."""

    offset: int
    size: int
    number: bool


@dataclass
class Layout:
    """A file's bytes and its fields by name, such as `tensor_count` or `tensor[0].dims[1]`."""

    data: bytearray = field(default_factory=bytearray)
    spans: dict[str, Span] = field(default_factory=dict)

    def put(self, name: str, raw: bytes, *, number: bool = False) -> None:
        self.spans[name] = Span(len(self.data), len(raw), number)
        self.data += raw

    def put_u32(self, name: str, value: int) -> None:
        self.put(name, struct.pack("<I", value), number=True)

    def put_u64(self, name: str, value: int) -> None:
        self.put(name, struct.pack("<Q", value), number=True)

    def offset(self, name: str) -> int:
        return self.spans[name].offset

    def patched(self, name: str, value: int | bytes) -> Layout:
        """A copy with one field replaced by a value of the same size."""
        copy = Layout(bytearray(self.data), self.spans)
        copy.patch(name, value)
        return copy

    def patch(self, name: str, value: int | bytes) -> None:
        span = self.spans[name]
        raw = value if isinstance(value, bytes) else value.to_bytes(span.size, "little")
        assert len(raw) == span.size
        self.data[span.offset : span.offset + span.size] = raw


@dataclass(frozen=True)
class Pair:
    """A metadata pair; an array has its elements' type in `element`."""

    key: bytes
    type: int
    value: object
    element: int = -1


@dataclass(frozen=True)
class Entry:
    """A directory entry; `dims` in ggml's order, contiguous first; `nbytes` of data follow at `start`.

    `start` None places it behind the tensor before.
    """

    name: bytes
    dims: tuple[int, ...]
    type: int
    nbytes: int
    start: int | None = None


def build(
    pairs: tuple[Pair, ...] = (),
    entries: tuple[Entry, ...] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    body: bool = True,
) -> Layout:
    """A file of these parts, valid if they are; without `body` it ends where the data would start."""
    out = Layout()
    out.put("magic", b"GGUF")
    out.put_u32("version", version)
    out.put_u64("tensor_count", len(entries))
    out.put_u64("metadata_count", len(pairs))
    for index, pair in enumerate(pairs):
        _put_pair(out, f"metadata[{index}]", pair)

    start, end = 0, 0
    starts = []
    for index, entry in enumerate(entries):
        start = start if entry.start is None else entry.start
        starts.append(start)
        _put_entry(out, f"tensor[{index}]", entry, start)
        end = max(end, start + entry.nbytes)
        start = _aligned(start + entry.nbytes, alignment)

    if entries:
        out.put("padding", bytes(_aligned(len(out.data), alignment) - len(out.data)))
    if entries and body:
        data = bytearray(end)
        for index, (entry, at) in enumerate(zip(entries, starts, strict=True)):
            data[at : at + entry.nbytes] = bytes([index + 1]) * entry.nbytes
        out.put("data", bytes(data))
    return out


def split_pairs(index: int, count: int, total: int) -> tuple[Pair, ...]:
    """What gguf-split writes into part `index`, from 0, in its types."""
    return (
        Pair(b"split.no", U16, index),
        Pair(b"split.count", U16, count),
        Pair(b"split.tensors.count", I32, total),
    )


def split_model(
    *parts: tuple[Entry, ...], pairs: tuple[Pair, ...] = (), stem: str = "m"
) -> dict[str, Layout]:
    """A model in several files by their names, each with its entries; the first has `pairs` as well."""
    total = sum(map(len, parts))
    return {
        f"{stem}-{index + 1:05}-of-{len(parts):05}.gguf": build(
            (pairs if index == 0 else ()) + split_pairs(index, len(parts), total), entries
        )
        for index, entries in enumerate(parts)
    }


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _put_pair(out: Layout, name: str, pair: Pair) -> None:
    out.put_u64(f"{name}.key.length", len(pair.key))
    out.put(f"{name}.key", pair.key)
    out.put_u32(f"{name}.type", pair.type)
    if pair.type != ARRAY:
        _put_scalar(out, f"{name}.value", pair.type, pair.value)
        return
    assert isinstance(pair.value, list)
    out.put_u32(f"{name}.element", pair.element)
    out.put_u64(f"{name}.count", len(pair.value))
    for index, value in enumerate(pair.value):
        _put_scalar(out, f"{name}.value[{index}]", pair.element, value)


def _put_scalar(out: Layout, name: str, kind: int, value: object) -> None:
    if kind == STRING:
        assert isinstance(value, bytes)
        out.put_u64(f"{name}.length", len(value))
        out.put(name, value)
    else:
        out.put(name, struct.pack("<" + _CODES[kind], value), number=True)


def _put_entry(out: Layout, name: str, entry: Entry, start: int) -> None:
    out.put_u64(f"{name}.name.length", len(entry.name))
    out.put(f"{name}.name", entry.name)
    out.put_u32(f"{name}.n_dims", len(entry.dims))
    for index, dim in enumerate(entry.dims):
        out.put_u64(f"{name}.dims[{index}]", dim)
    out.put_u32(f"{name}.type", entry.type)
    out.put_u64(f"{name}.offset", start)


def write_files(folder: Path, files: dict[str, Layout]) -> Path:
    """Writes the files and returns the path of the first."""
    for name, layout in files.items():
        (folder / name).write_bytes(layout.data)
    return folder / next(iter(files))


SMALL_PAIRS = (
    Pair(b"general.architecture", STRING, b"llama"),
    Pair(b"general.alignment", U32, 32),
    Pair(b"flag", BOOL, True),
    Pair(b"i8", I8, -5),
    Pair(b"u64", U64, 1 << 63),
    Pair(b"f64", F64, 0.1),
    Pair(b"tokens", ARRAY, [b"<s>", b"", b"\xff\xfe", "▁é".encode()], STRING),
    Pair(b"scores", ARRAY, [0.5, -1.0, 3.25], F32),
    Pair(b"mask", ARRAY, [True, False, True], BOOL),
    Pair(b"none", ARRAY, [], I32),
)
SMALL_ENTRIES = (
    Entry(b"embed.weight", (64, 3), 2, 3 * 36),  # Q4_0
    Entry(b"norm.weight", (4,), 0, 16),  # F32
    Entry(b"out.weight", (256, 2), 14, 420),  # Q6_K
    Entry(b"deep", (2, 3, 4, 5), 1, 240),  # F16
)


def small(version: int = 3) -> Layout:
    """A valid file with every kind of field."""
    return build(SMALL_PAIRS, SMALL_ENTRIES, version=version)
