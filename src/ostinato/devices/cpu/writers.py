"""Which code writes the IR: a digest of its source, so that what it wrote once need not be written again."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from importlib.resources import files
from importlib.resources.abc import Traversable

PACKAGES = ("device", "devices/cpu", "formats/encodings", "ir")
"""Where the source lies that decides what kernels are: they, and all that they import but errors."""
_OURS = "ostinato.devices.cpu."


@functools.cache
def digest() -> str | None:
    """The SHA-256 of that source; None where there is none to read: an installation of bytecode alone."""
    root = files("ostinato")
    return digest_of(root.joinpath(package) for package in PACKAGES)


def digest_for(writers: Iterable[object]) -> str | None:
    """`digest`, if it speaks for all of these: None where one's class comes from elsewhere."""
    ours = all(type(each).__module__.startswith(_OURS) for each in writers)
    return digest() if ours else None


def digest_of(folders: Iterable[Traversable]) -> str | None:
    """Of all Python files in some folders, by name and content; None for a folder without any."""
    whole = hashlib.sha256()
    for folder in folders:
        found = _files(folder)
        if not found:
            return None
        for name, data in found:
            for part in (name.encode(), data):
                whole.update(len(part).to_bytes(8, "little"))
                whole.update(part)
    return whole.hexdigest()


def _files(folder: Traversable) -> list[tuple[str, bytes]]:
    """Paths and contents, in the order of the paths."""
    found = []
    for each in folder.iterdir() if folder.is_dir() else ():
        if each.is_dir():
            found += [(f"{each.name}/{name}", data) for name, data in _files(each)]
        elif each.name.endswith(".py"):
            found.append((each.name, each.read_bytes()))
    return sorted(found)
