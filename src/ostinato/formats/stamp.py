"""What tells a file's contents from those of any other, and from its own at another time, unread."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field

SETTLED_NS = 2_000_000_000
"""How long ago a file must have changed. A change leaves the same time as an earlier one in the same tick of
the file system's clock, which is 2 s at most (FAT)."""


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A file and its state when it was opened. Equal stamps that are `sure` are equal contents.

    What is trusted is the file system: that writing to a file sets its status change time (`changed_ns`,
    POSIX ctime), which no program can set to a time of its choice. Stores through a mapping that stays
    writable may be seen late; a model's file must not be written to while it is open in any case. The head
    (names, shapes and places of all tensors) is read at each start, and so its digest is part of the stamp.
    """

    device: int
    inode: int
    nbytes: int
    modified_ns: int
    changed_ns: int
    head: str
    """SHA-256 of what precedes the tensors."""
    sure: bool = field(compare=False)
    """Whether another change would have left another stamp."""

    @classmethod
    def of(cls, info: os.stat_result, now_ns: int, head: bytes) -> FileStamp:
        """`info` is the open file's, asked at `now_ns`, before anything was read."""
        return cls(
            info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns,
            hashlib.sha256(head).hexdigest(), is_sure(info.st_ctime_ns, now_ns),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the bytes of a tensor lie."""

    file: FileStamp
    offset: int


def is_sure(changed_ns: int, now_ns: int) -> bool:
    """Whether a change from `now_ns` on leaves another time than `changed_ns`, and any earlier one did.

    Whole seconds are the mark of file systems without a time of change of their own: images whose files all
    have the time of their making, or object stores that show another.
    """
    return changed_ns % 1_000_000_000 != 0 and changed_ns + SETTLED_NS <= now_ns
