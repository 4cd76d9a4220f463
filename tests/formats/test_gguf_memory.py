"""What a GGUF file's head may cost: memory in proportion to its bytes, whatever they are."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from ggufbuilder import ARRAY, STRING, U8, U32

from ostinato.formats.gguf import GgufFile

FACTOR, SLACK = 32, 8 << 20  # at most FACTOR bytes for one of the head's, and SLACK


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes that `work` and its result held at once."""
    tracemalloc.start()
    try:
        held = work()
        peak = tracemalloc.get_traced_memory()[1]
        del held
        return peak
    finally:
        tracemalloc.stop()


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def head(tensors: int, pairs: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs)


def texts(item: bytes, count: int) -> bytes:
    body = (struct.pack("<Q", len(item)) + item) * count
    return head(0, 1) + pair(b"t", ARRAY, struct.pack("<IQ", STRING, count) + body)


def tiny_pairs(count: int, kind: int, value: bytes) -> bytes:
    return head(0, count) + b"".join(pair(b"%x" % i, kind, value) for i in range(count))


def tiny_tensors(count: int) -> bytes:
    entries = b"".join(
        struct.pack("<Q", 5) + b"%05x" % i + struct.pack("<IQIQ", 1, 1, 24, i * 32) for i in range(count)
    )
    start = -(-(len(entries) + 24) // 32) * 32
    return (head(count, 0) + entries).ljust(start + count * 32, b"\0")


AMPLIFIERS = {
    # Whatever makes the largest objects out of the fewest bytes.
    "empty strings": lambda: texts(b"", 70_000),
    "one-byte strings that are no UTF-8": lambda: texts(b"\xff", 60_000),
    "short strings": lambda: texts(b"ab", 60_000),
    "strings with one wide character": lambda: texts("a😀".encode(), 50_000),
    "one wide character in a long string": lambda: texts("😀".encode() + b"a" * 500_000, 4),
    "bytes": lambda: tiny_pairs(35_000, U8, b"\xff"),
    "wide integers": lambda: tiny_pairs(25_000, 10, b"\xff" * 8),
    "empty arrays": lambda: tiny_pairs(20_000, ARRAY, struct.pack("<IQ", U32, 0)),
    "arrays of one": lambda: tiny_pairs(20_000, ARRAY, struct.pack("<IQ", U8, 1) + b"\1"),
    "empty string arrays": lambda: tiny_pairs(20_000, ARRAY, struct.pack("<IQ", STRING, 0)),
    "tensors": lambda: tiny_tensors(15_000),
}


@pytest.mark.parametrize("name", AMPLIFIERS)
def test_the_head_costs_memory_in_proportion(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(AMPLIFIERS[name]())
    with GgufFile.open(path) as file:
        metadata_bytes = file.metadata_bytes
    assert metadata_bytes > 500_000
    assert peak_of(lambda: GgufFile.open(path)) <= FACTOR * metadata_bytes + SLACK
