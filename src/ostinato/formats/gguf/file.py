"""An open GGUF model: one file, or all parts of a split one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.closeable import Closeable
from ostinato.formats.gguf import split
from ostinato.formats.gguf.directory import GgufTensor
from ostinato.formats.gguf.mapped import MappedFile
from ostinato.formats.gguf.metadata import Metadata
from ostinato.formats.stamp import Origin


class GgufFile(Closeable):
    """An open GGUF model of version 2 or 3, little-endian; a context manager.

    Opening reads the head (metadata and tensor directory) and checks it against the file's size; tensor
    bytes are paged in when `data` views of them are read. A model in several files is opened by its first
    part, `NAME-00001-of-0000N.gguf`; the others lie beside it.

    A file may be replaced while it is open, by renaming another over it: the views go on showing the old
    one. It must not be written to or shortened. `data` notices when a tensor's end is no longer there, but a
    page that goes after that, under a view, ends the process when it is read, as with any mapping.

    Attributes:
        path: The file as it was named, the first part of a split model.
        parts: All files, in order; one unless the model is split.
        nbytes: Size of all files together when they were opened.
        version: 2 or 3.
        alignment: Tensor offsets are multiples of this within the data section of the first file.
        metadata: Typed metadata of the first file, in file order.
        tensors: The directory by name, in the order of the parts and of their files. A tensor's encoding may
            have no codec.
        metadata_bytes: Length of header, metadata and directory, without the padding behind them, of all
            files together.
    """

    path: Path
    parts: tuple[Path, ...]
    nbytes: int
    version: int
    alignment: int
    metadata: Metadata
    tensors: Mapping[str, GgufTensor]
    metadata_bytes: int

    def __init__(self, files: Sequence[MappedFile], metadata: Metadata) -> None:
        head = files[0].header
        self.path = files[0].path
        self.parts = tuple(file.path for file in files)
        self.nbytes = sum(file.nbytes for file in files)
        self.version = head.version
        self.alignment = head.alignment
        self.metadata = metadata
        self.tensors = MappingProxyType(split.join_tensors(files))
        self.metadata_bytes = sum(file.header.nbytes for file in files)
        self._files = files

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GgufFile:
        """Maps `path` and the parts that belong to it, and reads their heads.

        Raises:
            ModelFileMissing: There is no such file; `ModelPartMissing` for one of its parts.
            ModelFileUnreadable: The operating system refuses it.
            ModelFormatError: It is no GGUF file of a known version, its head breaks a rule of the format, it
                is a part other than the first, or the parts don't belong together.
        """
        with ExitStack() as opened:
            first = opened.enter_context(MappedFile(Path(path)))
            metadata = Metadata(MappingProxyType(first.header.metadata), str(path), first.header.widths)
            files = [first]
            for other in split.other_parts(first.path, metadata):
                files.append(opened.enter_context(MappedFile(other)))
                split.check_part(first, files[-1], len(files) - 1)
            file = cls(files, metadata)
            opened.pop_all()
            return file

    def data(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        """The tensor's bytes, a read-only view of the mapping: `[*shape[:-1], bytes of a row]`, uint8.

        Raises `ModelFileClosed` after `close`, and `ModelFileChanged` when the file has become too short.
        """
        return self._files[tensor.part].data(tensor)

    def origin(self, tensor: GgufTensor) -> Origin:
        """Where the tensor's bytes lie. Raises `ModelFileClosed` after `close`."""
        return self._files[tensor.part].origin(tensor)

    def close(self) -> None:
        """Lets go of the mappings; one goes when the last view of its data does. Closing twice is fine."""
        for file in self._files:
            file.close()

    def __repr__(self) -> str:
        state = "closed" if self._files[0].closed else "open"
        parts = f" in {len(self.parts)} parts" if len(self.parts) > 1 else ""
        return f"<GgufFile {self.path}{parts} v{self.version}, {len(self.tensors)} tensors, {state}>"
