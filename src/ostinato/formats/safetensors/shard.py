"""One mapped safetensors file."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.safetensors import guards
from ostinato.formats.safetensors.files import map_file
from ostinato.formats.safetensors.header import SafeTensor, read_header


class Shard:
    """An open safetensors file; `tensors` in the header's order."""

    tensors: Mapping[str, SafeTensor]

    def __init__(self, mapping: mmap.mmap, tensors: Mapping[str, SafeTensor]) -> None:
        self.tensors = tensors
        self._mapping = mapping

    @classmethod
    def open(cls, path: Path) -> Shard:
        """Maps `path` and reads its header."""
        mapping = map_file(path)
        try:
            return cls(mapping, read_header(mapping, path))
        except BaseException:
            mapping.close()
            raise

    def data(self, tensor: SafeTensor) -> NDArray[np.uint8]:
        """The tensor's bytes, a read-only view: `[*shape[:-1], bytes of a row]`; `[bytes]` of a scalar."""
        # The mapping keeps the file's descriptor, and `size` asks it: a renamed file is still this one.
        guards.check_not_shortened(str(tensor.file), tensor, self._mapping.size())
        flat = np.frombuffer(self._mapping, np.uint8)[tensor.offset : tensor.offset + tensor.nbytes]
        *outer, row = tensor.shape or (1,)
        return flat.reshape(*outer, tensor.encoding.row_bytes(row))

    def close(self) -> None:
        """Lets go of the mapping. A live view holds it and keeps working; the last one to go unmaps it."""
        with contextlib.suppress(BufferError):
            self._mapping.close()
