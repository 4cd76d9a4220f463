"""How many threads numpy's BLAS uses while the reference device runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController


@lru_cache(maxsize=1)
def _libraries() -> Sequence[Any]:
    """The BLAS libraries of this process; finding them reads the process's memory map, so once."""
    libraries: Sequence[Any] = ThreadpoolController().select(user_api="blas").lib_controllers
    return libraries


def counts_for_each_thread(library: Any) -> bool:
    """Whether a limit holds for the thread that sets it alone: OpenMP's and MKL's do, OpenBLAS's don't."""
    return library.internal_api == "mkl" or getattr(library, "threading_layer", "") == "openmp"


class Limiter:
    """Most BLAS have one thread count for the whole process: the first run in notes it and sets its own, runs
    that overlap share that, and the last one out puts back what was there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: list[tuple[Any, int]] = []

    @contextmanager
    def at(self, count: int) -> Iterator[None]:
        """Within the block BLAS uses `count` threads, unless an overlapping run had set another number."""
        mine = [library for library in _libraries() if counts_for_each_thread(library)]
        before = _limit(mine, count)
        self._enter(count)
        try:
            yield
        finally:
            self._leave()
            _restore(before)

    def _enter(self, count: int) -> None:
        with self._lock:
            if not self._inside:
                shared = [library for library in _libraries() if not counts_for_each_thread(library)]
                self._before = _limit(shared, count)
            self._inside += 1

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                _restore(self._before)


blas_threads = Limiter().at
"""Within the block BLAS uses so many threads; afterwards as many as before."""


def _limit(libraries: Sequence[Any], count: int) -> list[tuple[Any, int]]:
    before = [(library, library.num_threads) for library in libraries]
    _restore([(library, count) for library in libraries])
    return before


def _restore(counts: Sequence[tuple[Any, int]]) -> None:
    for library, count in counts:
        # Newer versions of threadpoolctl let only the thread that limited OpenBLAS first change it again, and
        # ignore the others; here it may be another run's thread that is the last one out.
        disown = getattr(library, "clear_controlling_thread", lambda force: None)
        disown(force=True)
        library.set_num_threads(count)
        disown(force=True)
