"""The files of a repository, by names that a stranger chose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_LONGEST = 400


@dataclass(frozen=True, slots=True)
class RepoFile:
    """One file: its path inside the repository, with `/`, and its bytes if known."""

    name: str
    size: int | None


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a repository at one commit."""

    commit: str
    files: tuple[RepoFile, ...]

    def __contains__(self, name: str) -> bool:
        return any(file.name == name for file in self.files)

    def named(self, name: str) -> RepoFile | None:
        """The file called `name`."""
        return next((file for file in self.files if file.name == name), None)


def listing(commit: str, files: Iterable[RepoFile]) -> Listing:
    """A listing of those files whose names can be trusted with a folder, sorted by name."""
    return Listing(commit, tuple(sorted((f for f in files if is_safe(f.name)), key=lambda file: file.name)))


def is_safe(name: str) -> bool:
    """The guard of every path made from a file's name: it leads nowhere but into the repository's folder."""
    if not name or len(name) > _LONGEST or "\\" in name or not name.isprintable():
        return False
    return all(part not in {"", ".", ".."} for part in name.split("/"))
