"""Which CPU each worker stays on, where `OSTINATO_PIN` asks for it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ostinato.host import cgroup

_SYSTEM = Path("/")


def places(threads: int, root: Path = _SYSTEM) -> list[int]:
    """A CPU for each of so many threads, within this process's affinity mask; empty where there are too few
    or the system pins nothing. Cores come before second hyper-threads of cores.

    The first is the caller's in name only: the caller is not ours to pin. When it comes to run where a worker
    is pinned, it soon waits for that worker, sleeps, and wakes on the CPU that is free.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    cpus = sorted(os.sched_getaffinity(0))
    if threads > len(cpus):
        return []
    rank: dict[int, int] = {}
    cores: dict[str, int] = {}
    for cpu in cpus:
        siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        core = cgroup.read_text(siblings) or f"cpu {cpu}"
        rank[cpu] = cores[core] = cores.get(core, -1) + 1
    return sorted(cpus, key=lambda cpu: (rank[cpu], cpu))[:threads]


def stay(cpu: int) -> None:
    """Pin the calling thread, if the system lets it."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {cpu})
