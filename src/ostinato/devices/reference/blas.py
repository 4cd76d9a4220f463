"""How many threads numpy's BLAS uses while the reference device runs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import lru_cache

from threadpoolctl import ThreadpoolController


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    """The BLAS libraries of this process; finding them reads the process's memory map, so once."""
    return ThreadpoolController().select(user_api="blas")


def blas_threads(count: int) -> AbstractContextManager[object]:
    """Within the block BLAS uses `count` threads; afterwards as many as before."""
    limiter: AbstractContextManager[object] = _libraries().limit(limits=count)
    return limiter
