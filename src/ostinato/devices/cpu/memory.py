"""Memory of the CPU device: anonymous pages, zero and costing nothing until they are touched."""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 2 << 20
"""Bytes of a huge page on x86 and, with 4 KiB base pages, on Arm. Larger buffers start on such a boundary."""


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """`nbytes` zeroed bytes at `address`, 64-byte aligned at least. They live as long as this or any view of
    `array` does; an address alone keeps nothing alive."""

    array: NDArray[np.uint8]
    """The bytes, `[nbytes]`, writable."""

    @property
    def address(self) -> int:
        return self.array.ctypes.data

    @property
    def nbytes(self) -> int:
        return self.array.nbytes


def allocate(nbytes: int, *, huge: bool = False) -> Buffer:
    """A new buffer of its own mapping.

    Args:
        nbytes: Its size; 0 is allowed.
        huge: Ask for huge pages: for what is written whole and then read again and again, as weights are
            (4 to 5% of decode speed). Memory that fills up slowly, as KV slabs do, is better without: the
            first byte would take 2 MiB.

    Raises:
        MemoryError: The system refuses.
    """
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
