"""Letting go of a file's pages once its bytes have been copied elsewhere."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DONTNEED: int | None = getattr(mmap, "MADV_DONTNEED", None)  # absent on Windows


def release(array: NDArray[Any]) -> int:
    """Takes the pages of a mapped tensor out of the process's memory, and returns how many bytes that were.

    `array` is what `GgufFile.data` or `Checkpoint.data` gave, or a contiguous view of it. Pages that it
    shares with a neighbour stay. Nothing is lost: the mapping is read-only, so a page that is read again
    comes from the file again. Does nothing, and returns 0, for other arrays and where the system has no
    such call.
    """
    mapping = _mapping_under(array)
    if mapping is None or _DONTNEED is None or not array.flags.c_contiguous:
        return 0
    start = _address(array) - _address(np.frombuffer(mapping, np.uint8, 1))
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end <= first:
        return 0
    # Only advice: a page that is locked in memory is refused, and stays.
    with contextlib.suppress(OSError):
        mapping.madvise(_DONTNEED, first, end - first)
        return end - first
    return 0


def _mapping_under(array: NDArray[Any]) -> mmap.mmap | None:
    """The read-only mapping that the array is a view of."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):  # numpy's hold on a buffer
        base = base.obj
    # In a mapping that can be written, dropped pages could be lost changes.
    return base if isinstance(base, mmap.mmap) and memoryview(base).readonly else None


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
