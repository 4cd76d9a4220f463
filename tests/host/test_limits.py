"""Threads and memory within what the system grants, on made-up systems."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ostinato.host import limits

GIB = 1 << 30
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
V1_CPU_MOUNT = "31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY_MOUNT = "32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


class System:
    """A root folder with just the kernel files that a test writes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> System:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
        return self

    def cores(self, *siblings: str) -> System:
        for cpu, text in enumerate(siblings):
            self.write(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", text)
        return self

    def mounts(self, own: str, *lines: str) -> System:
        return self.write("proc/self/cgroup", own).write("proc/self/mountinfo", "\n".join(lines))


@pytest.fixture
def system(tmp_path, monkeypatch) -> System:
    monkeypatch.delenv("OSTINATO_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return System(tmp_path)


def test_hyper_threads_of_one_core_count_once(system):
    system.cores("0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7")
    assert limits.cpu_threads(system.root) == 4


def test_only_cores_within_the_affinity_count(system, monkeypatch):
    system.cores("0-1", "0-1", "2-3", "2-3", "4-5", "4-5", "6-7", "6-7")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    assert limits.cpu_threads(system.root) == 2


def test_without_topology_or_affinity_logical_cpus_count(system, monkeypatch):
    assert limits.cpu_threads(system.root) == 8
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert limits.cpu_threads(system.root) == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert limits.cpu_threads(system.root) == 1


def test_the_variable_overrides_everything(system, monkeypatch):
    monkeypatch.setenv("OSTINATO_THREADS", " 13 ")
    assert limits.cpu_threads(system.root) == 13
    monkeypatch.setenv("OSTINATO_THREADS", "many")
    with pytest.raises(ValueError, match="many"):
        limits.cpu_threads(system.root)


@pytest.mark.parametrize(
    ("quota", "threads"),
    [
        ("max 100000", 8),
        ("350000 100000", 3),
        ("50000 100000", 1),
        ("", 8),
        ("nonsense", 8),
        ("5 0", 8),
    ],
)
def test_a_v2_quota(system, quota, threads):
    system.mounts("0::/app", V2_MOUNT).write("sys/fs/cgroup/app/cpu.max", quota)
    assert limits.cpu_threads(system.root) == threads


def test_the_tightest_quota_on_the_way_up_holds(system):
    system.mounts("0::/slice/app", V2_MOUNT)
    system.write("sys/fs/cgroup/slice/cpu.max", "200000 100000")
    system.write("sys/fs/cgroup/slice/app/cpu.max", "600000 100000")
    assert limits.cpu_threads(system.root) == 2


@pytest.mark.parametrize(("quota", "threads"), [("-1", 8), ("250000", 2)])
def test_a_v1_quota(system, quota, threads):
    system.mounts("4:cpu,cpuacct:/docker/abc\n0::/", V1_CPU_MOUNT)
    folder = "sys/fs/cgroup/cpu,cpuacct/docker/abc"
    system.write(f"{folder}/cpu.cfs_quota_us", quota).write(f"{folder}/cpu.cfs_period_us", "100000")
    assert limits.cpu_threads(system.root) == threads


@pytest.mark.parametrize("own", ["0::/docker/abc", "0::/../other", "0::/"])
def test_a_containers_own_group_is_the_mounts_root(system, own):
    mount = V2_MOUNT.replace(" / /sys", " /docker/abc /sys")
    system.mounts(own, mount).write("sys/fs/cgroup/cpu.max", "100000 100000")
    assert limits.cpu_threads(system.root) == 1


def test_memory_is_the_smaller_of_system_and_group(system):
    system.write("proc/meminfo", f"MemTotal: 99 kB\nMemAvailable:   {8 * GIB // 1024} kB")
    assert limits.available_memory(system.root) == 8 * GIB
    system.mounts("0::/app", V2_MOUNT)
    app = "sys/fs/cgroup/app"
    system.write(f"{app}/memory.max", "max").write(f"{app}/memory.current", str(GIB))
    assert limits.available_memory(system.root) == 8 * GIB
    system.write(f"{app}/memory.max", str(4 * GIB))
    assert limits.available_memory(system.root) == 3 * GIB
    system.write(f"{app}/memory.high", str(2 * GIB))
    assert limits.available_memory(system.root) == 1 * GIB
    # Cached file pages are dropped before anything is refused.
    system.write(f"{app}/memory.stat", f"anon 5\ninactive_file {GIB // 2}")
    assert limits.available_memory(system.root) == GIB + GIB // 2
    system.write(f"{app}/memory.current", str(9 * GIB))
    assert limits.available_memory(system.root) == 0


def test_memory_of_a_v1_group(system):
    system.write("proc/meminfo", f"MemAvailable: {8 * GIB // 1024} kB")
    system.mounts("5:memory:/job", V1_MEMORY_MOUNT)
    for folder, limit in (("", 0x7FFFFFFFFFFFF000), ("/job", 2 * GIB)):
        base = f"sys/fs/cgroup/memory{folder}"
        system.write(f"{base}/memory.limit_in_bytes", str(limit))
        system.write(f"{base}/memory.usage_in_bytes", str(GIB))
        system.write(f"{base}/memory.stat", f"inactive_file 1\ntotal_inactive_file {GIB // 4}")
    assert limits.available_memory(system.root) == GIB + GIB // 4


def test_a_system_that_tells_nothing(system):
    assert limits.available_memory(system.root) is None
    system.write("proc/meminfo", "MemAvailable:\nMemAvailable: x kB")
    system.mounts("garbage\n1:2", "garbage", "1 2 3 / /x rw - cgroup2", "")
    assert limits.available_memory(system.root) is None
    assert limits.cpu_threads(system.root) == 8


def test_this_machine(monkeypatch):
    monkeypatch.delenv("OSTINATO_THREADS", raising=False)
    assert 1 <= limits.cpu_threads() <= (os.cpu_count() or 1)
    memory = limits.available_memory()
    assert memory is None or memory > 0


def test_what_a_process_may_use(system, monkeypatch):
    system.cores("0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7")
    system.mounts("0::/", V2_MOUNT).write("sys/fs/cgroup/cpu.max", "250000 100000")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 4}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    found = limits.cpu_limits(system.root)
    assert found == limits.CpuLimits(present=16, allowed=4, cores=3, quota=2.5)
    assert found.threads == limits.cpu_threads(system.root) == 2
