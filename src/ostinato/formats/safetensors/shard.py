"""One mapped safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ostinato.formats.mapping import FileMapping
from ostinato.formats.safetensors import guards
from ostinato.formats.safetensors.header import SafeTensor, read_header


class Shard(FileMapping):
    """A mapping and the tensors that its header lists, in the header's order."""

    tensors: Mapping[str, SafeTensor]

    def __init__(self, path: Path) -> None:
        super().__init__(path, guards.check_length_field)
        self.tensors = self.read_head(lambda mapping: read_header(mapping, path))

    @property
    def head_bytes(self) -> int:
        return min((tensor.offset for tensor in self.tensors.values()), default=self.nbytes)
