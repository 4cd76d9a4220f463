"""One GGUF file, mapped read-only: a whole model, or a part of a split one."""

from __future__ import annotations

from pathlib import Path

from ostinato.formats.gguf import guards
from ostinato.formats.gguf.cursor import Cursor
from ostinato.formats.gguf.header import Header, read_header
from ostinato.formats.mapping import FileMapping


class MappedFile(FileMapping):
    """A mapping and the head that was read from it. Raises what `GgufFile.open` does for a single file."""

    header: Header

    def __init__(self, path: Path) -> None:
        super().__init__(path, _check_not_empty, advice="Name a .gguf file.")
        self.header = self.read_head(lambda mapping: read_header(Cursor(mapping, str(path))))

    @property
    def head_bytes(self) -> int:
        return self.header.nbytes


def _check_not_empty(file: str, size: int) -> None:
    if size == 0:
        guards.check_magic(file, b"")
