"""Opening a model's files: regular ones only, the system's refusals typed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ostinato.errors.formats import ModelFileMissing, ModelFileUnreadable, ModelFormatError


@contextmanager
def open_regular(path: Path, *, advice: str = "") -> Iterator[tuple[BinaryIO, int]]:
    """A regular file, open for reading, and its size. Links are followed: caches of models are made of them.

    `advice` is the remedy for something else at `path`. Raises `ModelFormatError` for that, and
    `ModelFileMissing` or `ModelFileUnreadable` also when the block's own work on the file fails so.
    """
    file = str(path)
    try:
        # Asked before opening: opening a pipe would wait for its writer.
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            got = "a directory" if stat.S_ISDIR(mode) else "a special file"
            raise ModelFormatError(file, "file", "a regular file", got, advice=advice)
        with path.open("rb") as handle:
            yield handle, os.fstat(handle.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelFileMissing(file) from error
    except OSError as error:
        raise ModelFileUnreadable(file, error.strerror or str(error)) from error
