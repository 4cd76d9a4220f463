"""Room on the disk, asked for before anything is fetched."""

from __future__ import annotations

import shutil
from pathlib import Path

from ostinato.errors.host import NotEnoughDiskSpace

# Beside the model and its archive: the tool's own files, the file system's blocks.
_SLACK = 32 << 20


def needed(size: int) -> int:
    """Bytes that fetching a file of `size` bytes takes at its peak: the archive, and a copy beside it."""
    return 2 * size + _SLACK


def require_free_space(folder: Path, size: int) -> None:
    """Raises `NotEnoughDiskSpace` unless a file of `size` bytes can be fetched into `folder`."""
    free = shutil.disk_usage(folder).free
    if free < needed(size):
        raise NotEnoughDiskSpace(where=str(folder), needed=needed(size), free=free)
