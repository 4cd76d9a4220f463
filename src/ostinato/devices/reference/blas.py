"""How many threads numpy's BLAS uses while the reference device runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from threadpoolctl import ThreadpoolController


@dataclass(frozen=True, slots=True)
class Knob:
    """One BLAS library's thread count. `thread_local`: what a thread sets holds for that thread alone."""

    get: Callable[[], int]
    set: Callable[[int], object]
    thread_local: bool


@lru_cache(maxsize=1)
def _knobs() -> Sequence[Knob]:
    """The BLAS libraries of this process; finding them reads the process's memory map, so once."""
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple(knob_of(library) for library in libraries)


def knob_of(library: Any) -> Knob:
    """OpenBLAS with threads of its own is asked directly: a token can't afford more, and newer versions of
    threadpoolctl let only the thread that limited it first change it again, while here it may be another
    run's thread that is the last one out."""
    if library.internal_api == "openblas" and getattr(library, "threading_layer", "") != "openmp":
        for prefix, suffix in product(("", "scipy_"), ("", "64_", "_64")):
            names = [f"{prefix}openblas_{verb}_num_threads{suffix}" for verb in ("get", "set")]
            get, put = (getattr(library.dynlib, name, None) for name in names)
            if get is not None and put is not None:
                return Knob(get, put, thread_local=False)
    return Knob(library.get_num_threads, library.set_num_threads, counts_for_each_thread(library))


def counts_for_each_thread(library: Any) -> bool:
    """Whether a limit holds for the thread that sets it alone: OpenMP's and MKL's do, OpenBLAS's don't."""
    return library.internal_api == "mkl" or getattr(library, "threading_layer", "") == "openmp"


Counts = list[tuple[Knob, int]]


class Limiter:
    """Most BLAS have one thread count for the whole process: the first run in notes it and sets its own, runs
    that overlap share that, and the last one out puts back what was there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: Counts = []

    def at(self, count: int) -> _Limited:
        """Within the block BLAS uses `count` threads, unless an overlapping run had set another number."""
        return _Limited(self, count)

    def _enter(self, count: int) -> None:
        with self._lock:
            if not self._inside:
                self._before = _limit([knob for knob in _knobs() if not knob.thread_local], count)
            self._inside += 1

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                _restore(self._before)


class _Limited:
    """One run's stay."""

    def __init__(self, limiter: Limiter, count: int) -> None:
        self._limiter = limiter
        self._count = count
        self._before: Counts = []

    def __enter__(self) -> None:
        self._before = _limit([knob for knob in _knobs() if knob.thread_local], self._count)
        self._limiter._enter(self._count)

    def __exit__(self, *_: object) -> None:
        self._limiter._leave()
        _restore(self._before)


blas_threads = Limiter().at
"""Within the block BLAS uses so many threads; afterwards as many as before."""


def _limit(knobs: Sequence[Knob], count: int) -> Counts:
    """What has to be put back afterwards: nothing, where the count is right already."""
    before = [(knob, was) for knob in knobs if (was := knob.get()) != count]
    for knob, _ in before:
        knob.set(count)
    return before


def _restore(before: Counts) -> None:
    for knob, count in before:
        knob.set(count)
