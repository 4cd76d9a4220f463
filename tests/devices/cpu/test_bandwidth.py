"""The read loops: they read all that they are timed for, and the best of them counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ostinato.devices.cpu.bandwidth import LOOPS, NBYTES, ReadBandwidth
from ostinato.devices.cpu.engine import Engine
from ostinato.devices.cpu.isa import select
from ostinato.devices.cpu.kernels.read import BLOCK

SOME = 100 * BLOCK + 1


def yardstick(threads: int = 2, *, seconds: Iterator[float] | None = None) -> ReadBandwidth:
    engine = Engine(select(), None, threads)
    if seconds is None:
        return ReadBandwidth(engine, SOME)
    now = 0.0

    def clock() -> float:
        """Odd calls begin a read, even ones end it."""
        nonlocal now, begun
        begun = not begun
        if not begun:
            now += next(seconds)
        return now

    begun = False
    return ReadBandwidth(engine, SOME, clock)


def test_two_loops_at_least_and_more_than_any_cache() -> None:
    assert len({loop.streams for loop in LOOPS}) >= 2
    assert NBYTES >= 256_000_000


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_loop_reads_everything(threads: int) -> None:
    """The buffers are full of ones: what a loop has read is the sum that it leaves."""
    found = yardstick(threads)
    assert found.nbytes >= SOME
    assert found.nbytes < SOME + threads * max(loop.streams for loop in LOOPS) * BLOCK + BLOCK
    assert len(found._jobs) == 2 * len(LOOPS)
    for job in found._jobs:
        found._out.array[:] = 0
        found._pool.run(job.address)
        assert found.read == found.nbytes // 8


def test_a_loop_that_leaves_something_out_is_noticed() -> None:
    found = yardstick()
    found._buffers[1].array[-1] = 255
    with pytest.raises(AssertionError, match="left something out"):
        found.sample()


def test_many_passes_over_the_same_bytes() -> None:
    found = yardstick(seconds=iter([4.0, 8.0, 1.5, 2.0]))
    assert found.repeated(3) == 3 * found.nbytes / 1.5
    assert found.samples == [], "it is no read of memory"


def test_the_best_of_all_reads_counts() -> None:
    loops = 2 * len(LOOPS)
    found = yardstick(seconds=iter([2.0] * (loops - 1) + [0.5] + [4.0] + [8.0] * (loops - 1)))
    assert found.best == 0
    assert found.sample() == found.nbytes / 0.5
    assert found.sample() == found.nbytes / 4.0
    assert found.samples == [found.nbytes / 0.5, found.nbytes / 4.0]
    assert found.best == found.nbytes / 0.5
