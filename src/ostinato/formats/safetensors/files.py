"""Opening a checkpoint's files: regular ones only, whole or mapped, the system's refusals typed."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ostinato.errors.formats import ModelFileMissing, ModelFileUnreadable, ModelFormatError
from ostinato.formats.safetensors import guards


def read_text(path: Path, limit: int) -> bytes:
    """The whole file, if it has at most `limit` bytes."""
    with _opened(path) as (handle, size):
        guards.check_text_size(str(path), size, limit)
        return handle.read(size)


def map_file(path: Path) -> mmap.mmap:
    """The file mapped read-only, if it is long enough for the length of a header."""
    with _opened(path) as (handle, size):
        guards.check_length_field(str(path), size)
        return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file and its size. Links are followed: a cache of models is made of them."""
    try:
        # Asked before opening: opening a pipe would wait for its writer.
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            got = "a directory" if stat.S_ISDIR(mode) else "a special file"
            raise ModelFormatError(str(path), "file", "a regular file", got)
        with path.open("rb") as handle:
            yield handle, os.fstat(handle.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelFileMissing(str(path)) from error
    except OSError as error:
        raise ModelFileUnreadable(str(path), error.strerror or str(error)) from error
