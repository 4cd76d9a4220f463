"""A tape on several threads: the order of its steps, how items are dealt, and who may call."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tapes import prefix_sums

from ostinato.devices.cpu.isa import select
from ostinato.devices.cpu.pool import ThreadPool
from ostinato.devices.cpu.waiting import InCondition, InFutex, Waiting

ISA = select()
WAITINGS = [InCondition, *([InFutex] if InFutex.available() else [])]
MANY = 4  # more threads than some machines have CPUs: nothing may depend on all running at once


@pytest.fixture(params=WAITINGS, ids=lambda kind: kind.__name__)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[int], ThreadPool]]:
    """Makes pools, with each way to sleep."""
    made = []

    def pool(threads: int) -> ThreadPool:
        waiting: Waiting = request.param()
        made.append(ThreadPool(threads, ISA, _waiting=waiting))
        return made[-1]

    yield pool
    for each in made:
        each.close()


def check_order(pool: ThreadPool, repeats: int, count: int = 300) -> None:
    job, x, sums = prefix_sums(ISA, count)
    for repeat in range(repeats):
        x[:] = repeat
        pool.run(job.address)
        assert np.array_equal(sums, np.arange(1, count + 1) * repeat), f"repeat {repeat}"


@pytest.mark.parametrize("threads", [1, 2, 3, MANY])
def test_steps_run_in_order(make: Callable[[int], ThreadPool], threads: int) -> None:
    check_order(make(threads), 2000 if threads <= 2 else 100)
