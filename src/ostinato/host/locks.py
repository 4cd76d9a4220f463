"""One process at a time."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

_log = logging.getLogger("ostinato.host")


@contextlib.contextmanager
def process_lock(path: Path, *, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Holds the lock file `path` for the length of the block; the system frees it when its holder dies.

    `on_wait` is called once if another process (or thread) holds it, before waiting as long as it takes.
    The empty lock file stays behind: removing it would let two processes each lock a file of that name.
    Raises `OSError` when the lock file cannot be made, or its file system has no locks.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, mode=0o600)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            _log.info("waiting for another process that holds %s", path)
            if on_wait is not None:
                on_wait()
            lock.acquire()
    except NotImplementedError as error:
        raise OSError(f"the file system of {path} has no file locks") from error
    try:
        yield
    finally:
        lock.release()
