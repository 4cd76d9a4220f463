"""One GGUF file, mapped read-only: a whole model, or a part of a split one."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ostinato.errors.formats import (
    ModelFileChanged,
    ModelFileClosed,
    ModelFileMissing,
    ModelFileUnreadable,
    ModelFormatError,
)
from ostinato.formats.gguf import guards
from ostinato.formats.gguf.cursor import Cursor
from ostinato.formats.gguf.directory import GgufTensor
from ostinato.formats.gguf.header import Header, read_header


class MappedFile:
    """A mapping and the head that was read from it; `nbytes` is the file's size at that time.

    Raises what `GgufFile.open` does for a single file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        mapping = _map(path)
        try:
            self.header: Header = read_header(Cursor(mapping, str(path)))
        except BaseException:
            mapping.close()
            raise
        self.nbytes = len(mapping)
        self._mapping: mmap.mmap | None = mapping

    @property
    def closed(self) -> bool:
        return self._mapping is None

    def data(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        """The tensor's bytes as `GgufFile.data` describes them."""
        if self._mapping is None:
            raise ModelFileClosed(str(self.path))
        # The mapping keeps the file's descriptor, and `size` asks it: a renamed file is still this one.
        check_not_shortened(str(self.path), tensor, self._mapping.size())
        flat = np.frombuffer(self._mapping, np.uint8, tensor.nbytes, tensor.offset)
        return flat.reshape(*tensor.shape[:-1], tensor.encoding.row_bytes(tensor.shape[-1]))

    def close(self) -> None:
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            # A live view holds the mapping and keeps working; the last one to go unmaps it.
            with contextlib.suppress(BufferError):
                mapping.close()


def check_not_shortened(file: str, tensor: GgufTensor, size: int) -> None:
    """The file still reaches to the tensor's end: reading pages that have gone would end the process."""
    end = tensor.offset + tensor.nbytes
    if size < end:
        raise ModelFileChanged(file, tensor.name, end, size)


def _map(path: Path) -> mmap.mmap:
    """Maps a regular, non-empty file read-only."""
    file = str(path)
    try:
        # Asked before opening: opening a pipe would wait for its writer.
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            got = "a directory" if stat.S_ISDIR(mode) else "a special file"
            raise ModelFormatError(file, "file", "a regular file", got, advice="Name a .gguf file.")
        with path.open("rb") as handle:
            if os.fstat(handle.fileno()).st_size == 0:  # nothing to map
                guards.check_magic(file, b"")
            return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelFileMissing(file) from error
    except OSError as error:
        raise ModelFileUnreadable(file, error.strerror or str(error)) from error
