"""How long a run takes after the process has been idle, compared with one in a row of runs.

    python benchmarks/pool_wake.py [threads] [idle_ms]
    OSTINATO_PIN=1 python benchmarks/pool_wake.py

The tape is 60 steps with a barrier each and some 8 us of work on every thread. Other work on the machine
shows.
"""

from __future__ import annotations

import statistics
import sys
import time

from busy import Busy

from ostinato.devices.cpu.isa import select
from ostinato.devices.cpu.pool import ThreadPool
from ostinato.host import env
from ostinato.host.limits import cpu_threads

WARM, COLD = 300, 40


def main(threads: int, idle: float) -> None:
    pool = ThreadPool.of(threads, select())
    job = Busy(threads, steps=60, turns=25_000)
    pool.run(job.address)

    def timed() -> float:
        start = time.perf_counter()
        pool.run(job.address)
        return (time.perf_counter() - start) * 1e3

    warm = statistics.median(timed() for _ in range(WARM))
    cold, idled = [], 0.0
    for _ in range(COLD):
        used = time.process_time()
        time.sleep(idle / 1e3)
        idled += time.process_time() - used
        cold.append(timed() - warm)
    cold.sort()
    print(
        f"{threads} threads{', pinned' if env.pin() else ''}: warm {warm:.2f} ms; after {idle:.0f} ms idle "
        f"{statistics.median(cold):+.2f} ms, p90 {cold[COLD * 9 // 10]:+.2f}, most {cold[-1]:+.2f}; "
        f"{idled / COLD * 1e3:.2f} ms CPU in each of them"
    )


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(int(arguments[0]) if arguments else cpu_threads(), float(arguments[1]) if arguments[1:] else 50.0)
