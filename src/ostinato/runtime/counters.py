"""How often things happened: what proves that a plan was held and not made again."""

from __future__ import annotations

import threading
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
    others write may miss what they are just adding."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._all: list[Counts] = []

    @property
    def mine(self) -> Counts:
        """This thread's counts."""
        counts: Counts | None = getattr(self._local, "counts", None)
        if counts is None:
            counts = self._local.counts = Counts()
            with self._lock:
                self._all.append(counts)
        return counts

    def total(self) -> Counts:
        """The sum over all threads, ended ones included."""
        with self._lock:
            return Counts(*(sum(getattr(c, f.name) for c in self._all) for f in fields(Counts)))
