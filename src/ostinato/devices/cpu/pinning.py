"""Which CPU each worker stays on, where `OSTINATO_PIN` asks for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Set
from pathlib import Path

from ostinato.host import cgroup

_SYSTEM = Path("/")


def places(threads: int, root: Path = _SYSTEM) -> list[int]:
    """A CPU for each of so many threads, within this process's affinity mask; empty where there are too few
    or the system pins nothing. Cores come before second hyper-threads of cores.

    The first is the caller's in name only: for the time of a run, it keeps away from the others' CPUs.
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


def stay(cpus: Set[int]) -> None:
    """Keep the calling thread on these CPUs, if the system lets it."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cpus)


def staying(cpus: Set[int], call: Callable[[int, int], int], control: int, job: int) -> int:
    """What the call returns, made while the calling thread keeps to these CPUs: some 8 us more."""
    before = os.sched_getaffinity(0)
    stay(cpus)
    try:
        return call(control, job)
    finally:
        stay(before)
