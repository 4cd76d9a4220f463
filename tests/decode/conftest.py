"""Tests that compare bits run BLAS on one thread: its sums depend on how it shares the work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture
def one_thread() -> Iterator[None]:
    with threadpool_limits(1, user_api="blas"):
        yield
