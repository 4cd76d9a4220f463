"""Compiled objects on disk, so that a second start compiles nothing.

An entry is a file of the folder, named by its key: a header with the key and the SHA-256 of what follows,
then the object. Its modification time is when it was last used. Whoever can write here can run code in this
process: folder and entry must belong to the user and be writable by nobody else, each time they are opened.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ostinato.devices.cpu import llvm
from ostinato.devices.cpu.isa import Isa
from ostinato.errors.host import CacheNotWritable
from ostinato.host import atomic, dirs, version

MAX_BYTES = 256 << 20
CODEGEN = "1"
"""Raised whenever `compiler` makes other code of the same IR."""

_MAGIC = b"ostinato code 1\n"
_HEADER = len(_MAGIC) + 64 + 1 + 64 + 1
_SUFFIX = ".code"
_NAME = re.compile(r"[0-9a-f]{64}\.code")
_LEFTOVER = re.compile(r"\.[0-9a-f]{64}\.code\.[0-9a-f]+\.partial")

_log = logging.getLogger("ostinato.devices")
_unsaid = threading.Lock()
"""Taken for good by the one warning of this process."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the cache: bytes on disk, and when it was last used, in seconds since 1970."""

    key: str
    nbytes: int
    used: float


class CodeCache:
    """The objects in `folder`, at most `max_bytes` of them; with None, or a folder that won't do, none.

    A cache never fails a compilation: what can't be read is a miss, what can't be kept is not kept, and the
    first time in a process the log says why. Any number of processes and threads may share a folder.
    """

    def __init__(self, folder: Path | None, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes

    @classmethod
    def of_user(cls) -> CodeCache:
        """The user's own, in `code` inside the cache folder; nothing is created before the first `put`."""
        return cls(dirs.code_dir(create=False))

    @staticmethod
    def key_of(ir: str, isa: Isa) -> str:
        """The SHA-256 of everything that an object is made from. Raises NativeCompilerMissing."""
        digest = hashlib.sha256()
        for part in (ir, *identity(isa)):
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()

    def get(self, key: str) -> bytes | None:
        """The object kept under `key`, or None. An entry that isn't what it should be is dropped."""
        with self._opened() as folder:
            return None if folder is None else self._read(folder, key)

    def put(self, key: str, data: bytes) -> None:
        """Keeps `data` under `key`, and lets go what was used least recently where the cap asks for it."""
        if self.folder is None or _HEADER + len(data) > self.max_bytes:
            return
        try:
            dirs.private(self.folder.parent)
            dirs.private(self.folder)
            with self._opened() as folder:
                if folder is not None:
                    atomic.write_bytes(self.folder / _name(key), seal(key, data))
                    self._evict()
        except OSError as error:
            _warn(str(self.folder), error.strerror or str(error))

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
            for file in self._files(_NAME):
                with contextlib.suppress(FileNotFoundError):  # another process let it go
                    info = file.stat(follow_symlinks=False)
                    found.append(Entry(file.name.removesuffix(_SUFFIX), info.st_size, info.st_mtime))
        return sorted(found, key=lambda entry: (entry.used, entry.key))

    def clear(self) -> list[Entry]:
        """Removes every entry, and what killed writers left; nothing else in the folder. Returns what went.

        Raises CacheNotWritable.
        """
        removed = self.entries()
        try:
            for file in list(self._files(_NAME, _LEFTOVER)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(file.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CacheNotWritable(str(self.folder), error.strerror or str(error)) from error
        return removed

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
            _warn(str(folder), error.strerror or str(error))
            return None
        doubt = distrust(os.fstat(descriptor))
        if doubt:
            os.close(descriptor)
            _warn(str(folder), doubt)
            return None
        return descriptor

    def _read(self, folder: int, key: str) -> bytes | None:
        name = _name(key)
        try:
            # In the folder that was checked, whatever its path means by now. NONBLOCK: a pipe has no wait.
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ELOOP:
                _drop(folder, name)
            return None
        try:
            data = self._verified(descriptor, key)
        except OSError:  # a disk that can't be read here
            data = None
        finally:
            os.close(descriptor)
        if data is None:
            _drop(folder, name)
        else:
            with contextlib.suppress(OSError):  # where nothing can be written, a hit is still a hit
                now = time.time_ns()
                os.utime(name, ns=(now, now), dir_fd=folder)
        return data

    def _verified(self, descriptor: int, key: str) -> bytes | None:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_size > self.max_bytes or distrust(info):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return unsealed(key, file.read())

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
                os.unlink(self.folder / _name(entry.key))
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


def identity(isa: Isa) -> tuple[str, ...]:
    """Everything beside the IR that an object depends on, or that may have changed how it is made."""
    return (isa.name, isa.cpu, isa.features, llvm.triple(), *llvm.versions(), version.__version__, CODEGEN)


def distrust(info: os.stat_result) -> str:
    """Why machine code from a file or folder with this `stat` must not run; empty when it may."""
    if info.st_uid != os.geteuid():
        return f"it belongs to user {info.st_uid}, and code in it runs as user {os.geteuid()}"
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (mode {stat.S_IMODE(info.st_mode):04o})"
    return ""


def seal(key: str, data: bytes) -> bytes:
    """The file that keeps `data`."""
    return _MAGIC + f"{key}\n{hashlib.sha256(data).hexdigest()}\n".encode() + data


def unsealed(key: str, file: bytes) -> bytes | None:
    """What `seal` was given, or None if the file is another's, of another key, cut short or altered."""
    data = file[_HEADER:]
    return data if file == seal(key, data) else None


def _name(key: str) -> str:
    name = key + _SUFFIX
    if not _NAME.fullmatch(name):
        raise ValueError(f"{key!r} is no key of the code cache")
    return name


def _drop(folder: int, name: str) -> None:
    _log.info("dropped the damaged entry %s of the code cache", name)
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _warn(folder: str, reason: str) -> None:
    level = logging.WARNING if _unsaid.acquire(blocking=False) else logging.DEBUG
    _log.log(level, "compiled code is not kept in %s: %s", folder, reason)
