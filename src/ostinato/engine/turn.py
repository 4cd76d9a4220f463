"""One thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ostinato.errors.base import OstinatoError


class Turn:
    """Whose turn it is: one thread's at a time. A second one is refused, not queued."""

    def __init__(self, busy: Callable[[], OstinatoError]) -> None:
        self._busy = busy
        self._lock = threading.Lock()

    @contextmanager
    def mine(self) -> Iterator[None]:
        """Raises what `busy` makes while it is another's."""
        if not self._lock.acquire(blocking=False):
            raise self._busy()
        try:
            yield
        finally:
            self._lock.release()
