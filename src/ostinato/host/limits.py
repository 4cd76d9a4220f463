"""How many threads and how much memory this process may really use, containers included."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ostinato.host import cgroup, env

_SYSTEM = Path("/")


@dataclass(frozen=True, slots=True)
class CpuLimits:
    """Logical CPUs `present` and `allowed` (this process's affinity), the physical `cores` of the allowed
    ones, and the cgroups' tightest `quota` in CPUs, None without one."""

    present: int
    allowed: int
    cores: int
    quota: float | None

    @property
    def threads(self) -> int:
        """Threads worth starting, at least 1."""
        # Rounded down: one thread too many is throttled in the middle of a step, and all others wait for it.
        return max(1, self.cores if self.quota is None else min(self.cores, int(self.quota)))


def cpu_limits(root: Path = _SYSTEM) -> CpuLimits:
    """What this process may use. `root` is where the system's `/proc` and `/sys` are looked for."""
    allowed = _allowed_cpus()
    present = max(os.cpu_count() or 1, len(allowed))
    return CpuLimits(present, len(allowed), _physical_cores(allowed, root), _cpu_quota(root))


def cpu_threads(root: Path = _SYSTEM) -> int:
    """Threads worth starting: physical cores within the affinity mask and the cgroup quota, at least 1.

    `OSTINATO_THREADS` overrides it; raises `ValueError` when that is not a number of at least 1.
    `root` is where the system's `/proc` and `/sys` are looked for.
    """
    asked = env.threads()
    if asked is not None:
        return asked
    return cpu_limits(root).threads


def available_memory(root: Path = _SYSTEM) -> int | None:
    """Bytes that can be allocated without swapping, or None where the system does not tell.

    The system's `MemAvailable` or, where smaller, the room left in a control group.
    """
    rooms = [_system_memory(root), *(_group_memory(group) for group in cgroup.groups("memory", root))]
    return min((room for room in rooms if room is not None), default=None)


def _allowed_cpus() -> list[int]:
    """The logical CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _physical_cores(cpus: Iterable[int], root: Path) -> int:
    """How many cores `cpus` are: hyper-threads of one core share its vector units, and count once."""
    cores: set[str] = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = cgroup.read_text(topology / "thread_siblings_list")
        cores.add(siblings or f"cpu {cpu}")
    return len(cores)


def _cpu_quota(root: Path) -> float | None:
    """The tightest quota in CPUs, or None without one."""
    quotas: list[float] = []
    for group in cgroup.groups("cpu", root):
        if group.version == 2:
            # "150000 100000": microseconds of CPU time a period; "max 100000": no limit.
            words = (group.read("cpu.max") or "").split()
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
                quotas.append(int(words[0]) / int(words[1]))
        else:
            quota, period = group.read_int("cpu.cfs_quota_us"), group.read_int("cpu.cfs_period_us")
            if quota is not None and quota > 0 and period:
                quotas.append(quota / period)
    return min(quotas, default=None)


def _system_memory(root: Path) -> int | None:
    """`MemAvailable` in bytes."""
    for line in (cgroup.read_text(root / "proc/meminfo") or "").splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "MemAvailable:" and words[1].isdigit():
            return int(words[1]) * 1024
    return None


def _group_memory(group: cgroup.Cgroup) -> int | None:
    """Bytes below the group's limit, or None without one. Page cache the kernel can drop counts as free."""
    if group.version == 2:
        limits = [group.read_int("memory.max"), group.read_int("memory.high")]
        used, droppable = group.read_int("memory.current"), "inactive_file"
    else:
        limits = [group.read_int("memory.limit_in_bytes")]
        used, droppable = group.read_int("memory.usage_in_bytes"), "total_inactive_file"
    set_limits = [limit for limit in limits if limit is not None]
    if not set_limits or used is None:
        return None
    return max(0, min(set_limits) - max(0, used - _stat(group, droppable)))


def _stat(group: cgroup.Cgroup, name: str) -> int:
    """One line of `memory.stat`, in bytes; 0 when it is not there."""
    for line in (group.read("memory.stat") or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return 0
