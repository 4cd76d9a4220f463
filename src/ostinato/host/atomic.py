"""Files that are whole or absent: written beside their place, flushed to the disk, then renamed into it.

A process killed in the middle leaves a hidden `.NAME.XXXX.partial` file and never a broken `NAME`; `sweep`
removes what was left.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_SUFFIX = ".partial"


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """A writable file that takes the place of `path` when the block ends, and vanishes when it raises.

    The file has `mode`, less the process's umask. Raises `OSError` when the folder cannot be written.
    """
    # Same folder, so that the rename stays within one file system and is atomic.
    name = path.parent / f".{path.name}.{os.urandom(6).hex()}{_SUFFIX}"
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    _sync_folder(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Replaces `path` by `data`, whole or not at all."""
    with replacing(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Replaces `path` by `text` in UTF-8, whole or not at all."""
    write_bytes(path, text.encode())


def sweep(folder: Path, *, name: str | None = None, older_than: float = 3600.0) -> list[Path]:
    """Removes the temporary files that killed writers left in `folder`, and returns them.

    `name` narrows it to the writers of one file; `older_than` is in seconds since the last write, and spares
    those at work. Pass 0 only while holding the lock that every writer of `name` takes.
    """
    prefix = "." if name is None else f".{name}."
    oldest_spared = time.time() - older_than
    swept: list[Path] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not (entry.name.startswith(prefix) and entry.name.endswith(_SUFFIX)):
                continue
            # Another sweeper, or the writer's own rename, may be faster.
            with contextlib.suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_mtime <= oldest_spared:
                    os.unlink(entry.path)
                    swept.append(Path(entry.path))
    return swept


def _sync_folder(folder: Path) -> None:
    """Flushes the rename itself, where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
