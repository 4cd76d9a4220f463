"""A GGUF file, mapped read-only."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np
from numpy.typing import NDArray

from ostinato.errors.formats import ModelFileClosed, ModelFileMissing, ModelFileUnreadable, ModelFormatError
from ostinato.formats.gguf import guards
from ostinato.formats.gguf.cursor import Cursor
from ostinato.formats.gguf.directory import GgufTensor
from ostinato.formats.gguf.header import Header, read_header
from ostinato.formats.gguf.metadata import Metadata


class GgufFile:
    """An open GGUF file of version 2 or 3, little-endian; a context manager.

    Opening reads the head (metadata and tensor directory) and checks it against the file's size; tensor
    bytes are paged in when `data` views of them are read. The file must not be shortened while it is open:
    reading a page that has gone ends the process, as with any mapping.

    Attributes:
        path: The file as it was named.
        version: 2 or 3.
        alignment: Tensor offsets are multiples of this within the data section.
        metadata: Typed metadata, in file order.
        tensors: The directory by name, in file order. A tensor's encoding may have no codec.
        metadata_bytes: Length of header, metadata and directory, without the padding behind them.
    """

    path: Path
    version: int
    alignment: int
    metadata: Metadata
    tensors: Mapping[str, GgufTensor]
    metadata_bytes: int

    def __init__(self, path: Path, mapping: mmap.mmap, header: Header) -> None:
        self.path = path
        self.version = header.version
        self.alignment = header.alignment
        self.metadata = Metadata(MappingProxyType(header.metadata), str(path))
        self.tensors = MappingProxyType(header.tensors)
        self.metadata_bytes = header.nbytes
        self._mapping: mmap.mmap | None = mapping

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GgufFile:
        """Maps `path` and reads its head.

        Raises:
            ModelFileMissing: There is no such file.
            ModelFileUnreadable: The operating system refuses it.
            ModelFormatError: It is no GGUF file of a known version, or its head breaks a rule of the format.
        """
        path = Path(path)
        mapping = _map(path)
        try:
            header = read_header(Cursor(mapping, str(path)))
        except BaseException:
            mapping.close()
            raise
        return cls(path, mapping, header)

    def data(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        """The tensor's bytes, a read-only view of the mapping: `[*shape[:-1], bytes of a row]`, uint8.

        Raises `ModelFileClosed` after `close`.
        """
        if self._mapping is None:
            raise ModelFileClosed(str(self.path))
        flat = np.frombuffer(self._mapping, np.uint8, tensor.nbytes, tensor.offset)
        return flat.reshape(*tensor.shape[:-1], tensor.encoding.row_bytes(tensor.shape[-1]))

    def close(self) -> None:
        """Lets go of the mapping; it goes when the last view of its data does. Closing twice is fine."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            # A live view holds the mapping and keeps working; the last one to go unmaps it.
            with contextlib.suppress(BufferError):
                mapping.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._mapping is None else "open"
        return f"<GgufFile {self.path} v{self.version}, {len(self.tensors)} tensors, {state}>"


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
