"""How often things happened: what proves that a plan was held and not made again."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass
class Counts:
    """Calls, and bytes handed to devices as bindings and uploads."""

    optimize_calls: int = 0
    realize_calls: int = 0
    bytes_bound: int = 0
    bytes_uploaded: int = 0


class Counters:
    """Counts of one InferenceContext: each thread writes its own, `total` sums them. Reading a sum while
    others write may miss what they are just adding. Counts of ended threads are kept as one sum."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._running: list[tuple[weakref.ref[threading.Thread], Counts]] = []
        self._ended = Counts()

    @property
    def mine(self) -> Counts:
        """This thread's counts."""
        counts: Counts | None = getattr(self._local, "counts", None)
        if counts is None:
            counts = self._local.counts = Counts()
            with self._lock:
                self._fold_ended()
                self._running.append((weakref.ref(threading.current_thread()), counts))
        return counts

    def total(self) -> Counts:
        """The sum over all threads, ended ones included."""
        with self._lock:
            self._fold_ended()
            return _sum([self._ended, *(counts for _, counts in self._running)])

    def _fold_ended(self) -> None:
        running = []
        for entry in self._running:
            thread = entry[0]()
            if thread is not None and thread.is_alive():
                running.append(entry)
            else:
                self._ended = _sum([self._ended, entry[1]])
        self._running = running


def _sum(parts: Sequence[Counts]) -> Counts:
    return Counts(*(sum(getattr(part, f.name) for part in parts) for f in fields(Counts)))
