"""Files that are written again and again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def rewrite(path: Path, data: bytes) -> None:
    """Makes `data` the file's contents without emptying it first.

    A file that is emptied and written again goes to the disk at once on ext4, some milliseconds each time.
    """
    with open(os.open(path, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.write(data)
        file.truncate()


class Rewritten:
    """A folder of files that is written only where it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: dict[str, bytes] = {}

    def put(self, files: dict[str, bytes]) -> None:
        for name in self.files.keys() - files.keys():
            (self.path / name).unlink()
        for name, data in files.items():
            if self.files.get(name) != data:
                rewrite(self.path / name, data)
        self.files = files


def cut_everywhere(path: Path, data: bytes) -> Iterator[int]:
    """Shortens `data` byte by byte in the file at `path`; gives its length each time, 0 in the end."""
    rewrite(path, data)
    for end in reversed(range(len(data))):
        os.truncate(path, end)
        yield end
