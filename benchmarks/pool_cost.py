"""What the thread pool costs: a run, a barrier, and two processes that share the machine.

    python benchmarks/pool_cost.py [threads]

Two processes at once have half the machine each, so twice the time of one alone would be no cost at all.
Other work on the machine shows.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from busy import Busy

from ostinato.devices.cpu.isa import select
from ostinato.devices.cpu.pool import ThreadPool
from ostinato.host.limits import cpu_threads

ROUNDS, SECONDS, BARRIERS = 5, 1.5, 1000


def microseconds(pool: ThreadPool, job: Busy, runs: int) -> float:
    """The median of so many runs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        pool.run(job.address)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def worker(threads: int) -> None:
    """Print the mean time of a run, as seen by one process."""
    pool = ThreadPool.of(threads, select())
    job = Busy(threads, steps=200, turns=20_000)
    pool.run(job.address)
    start, runs = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        pool.run(job.address)
        runs += 1
    print((time.perf_counter() - start) / runs * 1e3)


def at_once(processes: int, threads: int) -> float:
    """Milliseconds of a run in the slowest of so many processes."""
    command = [sys.executable, __file__, str(threads), "worker"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return max(float(process.communicate()[0]) for process in started)


def main(threads: int) -> None:
    for size in sorted({1, threads}):
        pool = ThreadPool.of(size, select())
        empty = microseconds(pool, Busy(size, steps=0, turns=0), 20_000)
        steps = microseconds(pool, Busy(size, steps=BARRIERS, turns=0), 300)
        step = (steps - empty) / BARRIERS
        print(f"{size} threads: a run {empty:.2f} us, a step with a barrier {step:.3f} us")
    alone, both = zip(*((at_once(1, threads), at_once(2, threads)) for _ in range(ROUNDS)), strict=True)
    ratio = statistics.median(two / one for one, two in zip(alone, both, strict=True))
    print(
        f"{threads} threads, 200 steps: {statistics.median(alone):.2f} ms alone, "
        f"{statistics.median(both):.2f} ms in each of two processes, {ratio:.2f} times"
    )


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if sys.argv[1:] else cpu_threads()
    if sys.argv[2:] == ["worker"]:
        worker(wanted)
    else:
        main(wanted)
