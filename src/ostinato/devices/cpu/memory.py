"""Memory of the CPU device: anonymous pages, zero and costing nothing until they are touched."""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 2 << 20
"""Bytes of a huge page on x86 and, with 4 KiB base pages, on Arm. Larger buffers start on such a boundary."""


LINE = 64
"""Bytes of a cache line."""

SMALL = 1 << 14
"""Bytes from which on a buffer is a mapping; below, that would cost more than the buffer."""


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """`nbytes` zeroed bytes at `address`, 64-byte aligned at least. They live as long as this or any view of
    `array` does; an address alone keeps nothing alive."""

    array: NDArray[np.uint8]
    """The bytes, `[nbytes]`, writable."""
    address: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", self.array.ctypes.data)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes


def allocate(nbytes: int, *, huge: bool = False) -> Buffer:
    """A new buffer, of its own mapping unless it is small.

    Args:
        nbytes: Its size; 0 is allowed.
        huge: Ask for huge pages: for what is written whole and then read again and again, as weights are
            (4 to 5% of decode speed). Memory that fills up slowly, as KV slabs do, is better without: the
            first byte would take 2 MiB.

    Raises:
        MemoryError: The system refuses.
    """
    if nbytes < SMALL:
        some = np.zeros(nbytes + 2 * LINE, np.uint8)
        start = -some.ctypes.data % LINE
        return Buffer(some[start : start + LINE + nbytes][:nbytes])
    slack = HUGE_PAGE - mmap.PAGESIZE if nbytes >= HUGE_PAGE else 0
    try:
        pages = mmap.mmap(-1, max(nbytes + slack, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"the system refuses {nbytes} bytes: {error}") from error
    whole = np.frombuffer(pages, np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE if slack else 0
    if huge and nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them: small pages work, a little slower
            pages.madvise(mmap.MADV_HUGEPAGE)
    return Buffer(whole[start : start + nbytes])


class Heap:
    """Buffers cut from large mappings with huge pages, for what is never given back one by one.

    A mapping lives as long as any buffer of it. Weights of one model so lie side by side, on few pages.
    """

    def __init__(self, chunk: int = 16 * HUGE_PAGE) -> None:
        self._chunk = chunk
        self._rest: Buffer | None = None

    def take(self, nbytes: int) -> Buffer:
        """A new buffer, 64-byte aligned, zero. Raises MemoryError."""
        room = -(-nbytes // LINE) * LINE
        if room > self._chunk // 2:
            return allocate(nbytes, huge=True)
        rest = self._rest
        if rest is None or rest.nbytes < room:
            rest = allocate(self._chunk, huge=True)
        self._rest = Buffer(rest.array[room:])
        return Buffer(rest.array[:nbytes])
