"""Files that a process keeps for the next one, in a folder of the user's alone.

An entry is a file of the folder, named by its key. Its modification time is when it was last used. What lies
here is believed: folder and entry must belong to the user and be writable by nobody else, each time they are
opened.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, TypeVar

from ostinato.host import atomic, dirs

T = TypeVar("T")

_log = logging.getLogger("ostinato.host")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: bytes on disk, and when it was last used, in seconds since 1970."""

    key: str
    nbytes: int
    used: float


class KeptFiles:
    """The entries in `folder`, at most `max_bytes` of them; with None, or a folder that won't do, none.

    Keeping never fails its user: what can't be read is a miss, what can't be kept is not kept, and the first
    time in a process the log says why. Any number of processes and threads may share a folder. A key is the
    hexadecimal SHA-256 of everything that an entry was made from.
    """

    what: ClassVar[str]
    """What is kept, in messages."""
    suffix: ClassVar[str]
    unsaid: ClassVar[threading.Lock]
    """Taken for good by the one warning of this process: a subclass has its own."""

    def __init__(self, folder: Path | None, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.why_not = ""
        """Why something was last not kept, or not looked for; empty while all is well."""
        self._name = re.compile(rf"[0-9a-f]{{64}}{re.escape(self.suffix)}")
        self._leftover = re.compile(rf"\.{self._name.pattern}\.[0-9a-f]+\.partial")

    def doubt(self) -> str:
        """Why the folder is there and yet not used; empty when it is used, or would be."""
        try:
            info = None if self.folder is None else os.stat(self.folder)
        except FileNotFoundError:
            info = None
        except OSError as error:
            return error.strerror or str(error)
        if info is None:
            return ""
        return distrust(info) if stat.S_ISDIR(info.st_mode) else "it is no folder"

    def entries(self) -> list[Entry]:
        """What is kept, least recently used first. Raises nothing: no folder is no entries."""
        found: list[Entry] = []
        with contextlib.suppress(OSError):
            for file in self._files(self._name):
                with contextlib.suppress(FileNotFoundError):  # another process let it go
                    info = file.stat(follow_symlinks=False)
                    found.append(Entry(file.name.removesuffix(self.suffix), info.st_size, info.st_mtime))
        return sorted(found, key=lambda entry: (entry.used, entry.key))

    def clear(self) -> list[Entry]:
        """Removes every entry, and what killed writers left; nothing else in the folder. Returns what went.

        Raises OSError.
        """
        removed = self.entries()
        try:
            for file in list(self._files(self._name, self._leftover)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(file.path)
        except FileNotFoundError:
            return []
        return removed

    def file_name(self, key: str) -> str:
        """The name of an entry's file; raises ValueError for what is no key."""
        name = key + self.suffix
        if not self._name.fullmatch(name):
            raise ValueError(f"{key!r} is no key of the cache of {self.what}")
        return name

    def _load(self, key: str, read: Callable[[BinaryIO, int], T | None]) -> T | None:
        """What `read(file, size)` makes of the entry, or None where there is none that can be trusted. An
        entry that `read` answers None for isn't what it should be, and is dropped."""
        name = self.file_name(key)
        with self._opened() as folder:
            return None if folder is None else self._read(folder, name, read)

    def _keep(self, key: str, nbytes: int, write: Callable[[BinaryIO], object]) -> None:
        """Keeps the `nbytes` that `write(file)` writes, and lets go what was used least recently where the
        cap asks for it."""
        name = self.file_name(key)
        if self.folder is None or nbytes > self.max_bytes:
            return
        try:
            dirs.private(self.folder.parent)
            dirs.private(self.folder)
            with self._opened() as folder:
                if folder is not None:
                    with atomic.replacing(self.folder / name) as file:
                        write(file)
                    self._evict()
        except OSError as error:
            self._warn(error.strerror or str(error))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int | None]:
        """A descriptor of the folder, or None where there is none that can be trusted."""
        descriptor = None
        if self.folder is not None and os.name == "posix":
            with contextlib.suppress(FileNotFoundError):
                descriptor = self._open(self.folder)
        try:
            yield descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _open(self, folder: Path) -> int | None:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(error.strerror or str(error))
            return None
        doubt = distrust(os.fstat(descriptor))
        if doubt:
            os.close(descriptor)
            self._warn(doubt)
            return None
        return descriptor

    def _read(self, folder: int, name: str, read: Callable[[BinaryIO, int], T | None]) -> T | None:
        try:
            # In the folder that was checked, whatever its path means by now. NONBLOCK: a pipe has no wait.
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ELOOP:
                self._drop(folder, name)
            return None
        try:
            info = os.fstat(descriptor)
            got = None
            if stat.S_ISREG(info.st_mode) and info.st_size <= self.max_bytes and not distrust(info):
                with open(descriptor, "rb", closefd=False) as file:
                    got = read(file, info.st_size)
        except OSError:  # a disk that can't be read here
            got = None
        finally:
            os.close(descriptor)
        if got is None:
            self._drop(folder, name)
        else:
            with contextlib.suppress(OSError):  # where nothing can be written, a hit is still a hit
                now = time.time_ns()
                os.utime(name, ns=(now, now), dir_fd=folder)
        return got

    def _evict(self) -> None:
        """Keeps to the cap. Without a lock: all processes choose in the same order, so two at once choose the
        same, and whoever writes last sees everything that was written before."""
        assert self.folder is not None
        entries = self.entries()
        excess = sum(entry.nbytes for entry in entries) - self.max_bytes
        for entry in entries:
            if excess <= 0:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.folder / self.file_name(entry.key))
            excess -= entry.nbytes
        atomic.sweep(self.folder)

    def _files(self, *patterns: re.Pattern[str]) -> Iterator[os.DirEntry[str]]:
        """The cache's own files: by name, and never a link."""
        if self.folder is None:
            return
        with os.scandir(self.folder) as files:
            for file in files:
                if any(pattern.fullmatch(file.name) for pattern in patterns) and file.is_file(
                    follow_symlinks=False
                ):
                    yield file

    def _drop(self, folder: int, name: str) -> None:
        _log.info("dropped the damaged entry %s of the cache of %s", name, self.what)
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)

    def _warn(self, reason: str) -> None:
        self.why_not = reason
        level = logging.WARNING if self.unsaid.acquire(blocking=False) else logging.DEBUG
        _log.log(level, "%s: not kept in %s: %s", self.what, self.folder, reason)


def distrust(info: os.stat_result) -> str:
    """Why nothing from a file or folder with this `stat` may be believed, machine code least of all; empty
    when it may."""
    if info.st_uid != os.geteuid():
        return f"it belongs to user {info.st_uid}, and this process runs as user {os.geteuid()}"
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (mode {stat.S_IMODE(info.st_mode):04o})"
    return ""
