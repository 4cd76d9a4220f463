"""A model file mapped read-only, and its tensors as views of the mapping."""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ostinato.errors.formats import ModelFileChanged, ModelFileClosed
from ostinato.formats.closeable import Closeable
from ostinato.formats.placed import Placed, StoredTensor
from ostinato.formats.regular import open_regular
from ostinato.formats.stamp import FileStamp, Origin

H = TypeVar("H")


class FileMapping(Closeable):
    """A mapping of the whole file at `path`; `nbytes` is its size when it was mapped.

    `check_size(file, size)` raises for a file that is too short to be a model's, an empty one among them:
    there is nothing to map. Raises what `open_regular` does.
    """

    def __init__(self, path: Path, check_size: Callable[[str, int], None], *, advice: str = "") -> None:
        self.path = path
        with open_regular(path, advice=advice) as (handle, size):
            check_size(str(path), size)
            mapping = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
            self._seen = os.fstat(handle.fileno()), time.time_ns()
        self.nbytes = len(mapping)
        self._mapping: mmap.mmap | None = mapping
        self._stamp: FileStamp | None = None

    @property
    def closed(self) -> bool:
        return self._mapping is None

    @property
    @abstractmethod
    def head_bytes(self) -> int:
        """Length of what precedes the tensors."""

    def read_head(self, read: Callable[[mmap.mmap], H]) -> H:
        """What `read` makes of the file; when it raises, the mapping goes."""
        try:
            return read(self._open())
        except BaseException:
            self.close()
            raise

    def data(self, tensor: StoredTensor) -> NDArray[np.uint8]:
        """The tensor's bytes, a read-only view: `[*shape[:-1], bytes of a row]`; `[bytes]` of a scalar.

        Raises `ModelFileClosed` after `close`, and `ModelFileChanged` when the file has become too short.
        """
        mapping = self._open()
        # The mapping keeps the file's descriptor, and `size` asks it: a renamed file is still this one.
        check_not_shortened(str(self.path), tensor, mapping.size())
        flat = np.frombuffer(mapping, np.uint8)[tensor.offset : tensor.offset + tensor.nbytes]
        *outer, row = tensor.shape or (1,)
        return flat.reshape(*outer, tensor.encoding.row_bytes(row))

    def origin(self, tensor: Placed) -> Origin:
        """Where the tensor's bytes lie; reads the head alone. Raises `ModelFileClosed` after `close`."""
        if self._stamp is None:
            self._stamp = FileStamp.of(*self._seen, self._open()[: self.head_bytes])
        return Origin(self._stamp, tensor.offset)

    def close(self) -> None:
        """Lets go of the mapping. A live view holds it and keeps working; the last one to go unmaps it."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            with contextlib.suppress(BufferError):
                mapping.close()

    def _open(self) -> mmap.mmap:
        if self._mapping is None:
            raise ModelFileClosed(str(self.path))
        return self._mapping


def check_not_shortened(file: str, tensor: Placed, size: int) -> None:
    """The file still reaches to the tensor's end: reading pages that have gone would end the process."""
    end = tensor.offset + tensor.nbytes
    if size < end:
        raise ModelFileChanged(file, tensor.name, end, size)
