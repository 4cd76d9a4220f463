"""What the machine would not give: room on the disk, a folder that can be written."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors.base import OstinatoError


@dataclass(eq=False, repr=False)
class NotEnoughDiskSpace(OstinatoError, OSError):
    """`where` has `free` bytes left and `needed` are needed."""

    where: str
    needed: int
    free: int

    def message(self) -> str:
        return f"{self.where} has {_mb(self.free)} free and {_mb(self.needed)} are needed"

    @property
    def remedy(self) -> str:
        return "Free some space, or let OSTINATO_CACHE_DIR name a folder on another disk."


@dataclass(eq=False, repr=False)
class CacheNotWritable(OstinatoError, OSError):
    """The cache folder `where` cannot be created or written, for the system's `reason`."""

    where: str
    reason: str

    def message(self) -> str:
        return f"the cache folder {self.where} cannot be written: {self.reason}"

    @property
    def remedy(self) -> str:
        return "Let OSTINATO_CACHE_DIR name a folder that you can write."


def _mb(count: int) -> str:
    return f"{count / 1e6:.0f} MB"
