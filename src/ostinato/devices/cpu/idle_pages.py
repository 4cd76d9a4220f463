"""LLVM's library is 100 MB and more of code and constants that nobody needs once a plan is compiled."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path

MAPS = Path("/proc/self/smaps")
LIBRARY = "libllvmlite"


def release_compiler() -> int:
    """Let go of the library's read-only pages: this process no longer counts them, and reads them from the
    file's cache again when it compiles again. Returns the bytes they span; 0 where that can't be done."""
    if sys.platform != "linux":
        return 0
    try:
        ranges = list(read_only(MAPS.read_text("utf-8", "surrogateescape")))
        libc = ctypes.CDLL(None, use_errno=True)
    except OSError:
        return 0
    advise = libc.madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return sum(size for start, size in ranges if advise(start, size, mmap.MADV_DONTNEED) == 0)


def read_only(maps: str) -> Iterator[tuple[int, int]]:
    """(address, size) of the library's mappings that are as they lie in the file.

    The guard of `release_compiler`: what has been written to a private mapping (the loader does so, before it
    takes the right to write away) is in no file, and would be lost.
    """
    found: tuple[int, int] | None = None
    for line in maps.splitlines():
        first, *rest = line.split(maxsplit=5)
        if "-" in first:  # 7f…-7f… r-xp 00000000 08:01 1234 /path
            name = Path(rest[4]).name if len(rest) == 5 else ""
            start, end = (int(part, 16) for part in first.split("-"))
            unwritten = name.startswith(LIBRARY) and rest[0] in ("r-xp", "r--p")
            found = (start, end - start) if unwritten else None
        elif first == "Anonymous:" and found is not None:
            if rest[0] == "0":
                yield found
            found = None
