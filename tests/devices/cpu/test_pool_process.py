"""Pools and the life of a process: idling, forks, signals and every way out. Nothing here may hang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_pool import EMPTY, ISA, check_order, own_code_cache

from ostinato.devices.cpu import pinning, pool
from ostinato.devices.cpu.pool import ThreadPool
from ostinato.devices.cpu.waiting import InFutex, InPython, Waiting
from ostinato.errors import PoolAfterFork
from sabotage import goes_red, nothing

__all__ = ["own_code_cache"]

HERE = Path(__file__).parent
KINDS = ["InPython", *(["InFutex"] if InFutex.available() else [])]
LIMIT = 30.0

PRELUDE = """
import atexit, os, signal, sys, threading, time
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background
    signal.signal(signal.SIGINT, signal.default_int_handler)
at_exit = []
atexit.register(lambda: [each() for each in at_exit])  # registered first, so it runs last
import numpy as np
from ostinato.devices.cpu import waiting
from ostinato.devices.cpu.isa import select
from ostinato.devices.cpu.pool import ThreadPool
from ostinato.errors import PoolClosed
from tapes import Busy, Job, Step
pools = [ThreadPool(2, select(), _waiting=getattr(waiting, kind)()) for kind in sys.argv[1:]]
cells = np.zeros(32, np.int64)
tenth = Job(select(), [Step(Busy(), (cells, 1_000_000), 2, barrier=True)] * 200)  # a tenth of a second or so
empty = Job(select(), [])

def each_runs(job=empty):
    for pool in pools:
        pool.run(job.address)

def for_ever():
    while True:
        each_runs(tenth)

def refused():
    for pool in pools:
        try:
            pool.run(empty.address)
        except PoolClosed:
            print("refused", end=" ")

each_runs()
"""
"""A process with a pool of each kind, all of which have run."""

WAYS_OUT = {
    "the end": ("", 0, ""),
    "the end, later": ("time.sleep(0.3)", 0, ""),
    "exit": ("sys.exit(3)", 3, ""),
    "exit while idle": ("time.sleep(0.3); sys.exit(3)", 3, ""),
    "error": ("raise SystemError", 1, ""),
    "_exit": ("os._exit(4)", 4, ""),
    "closed": ("[pool.close() for pool in pools]", 0, ""),
    "a daemon thread runs": (
        "threading.Thread(target=for_ever, daemon=True).start(); time.sleep(0.2); sys.exit(5)",
        5,
        "",
    ),
    "a thread runs on": (
        "threading.Thread(target=lambda: [each_runs() for _ in range(1000)]).start()",
        0,
        "",
    ),
    "a thread exits the process": (
        "threading.Thread(target=lambda: (time.sleep(0.2), os._exit(6))).start(); for_ever()",
        6,
        "",
    ),
    "a run at exit": ("at_exit.append(refused)", 0, " ".join(["refused"] * len(KINDS))),
    "another pool at exit": ("at_exit.append(lambda: ThreadPool(1, select()).run(empty.address))", 0, ""),
}


def _environment() -> dict[str, str]:
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@contextlib.contextmanager
def started(script: str) -> Iterator[subprocess.Popen[str]]:
    """A process that does `PRELUDE` and the script; it is killed in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, *KINDS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("way", WAYS_OUT)
def test_a_process_ends(way: str) -> None:
    script, code, said = WAYS_OUT[way]
    with started(script) as process:
        out, err = process.communicate(timeout=LIMIT)
        assert (process.returncode, out.strip()) == (code, said), err


SIGNALLED = {
    "interrupt during a run": ("print('up', flush=True); for_ever()", "SIGINT", -signal.SIGINT),
    "interrupt while idle": ("print('up', flush=True); time.sleep(60)", "SIGINT", -signal.SIGINT),
    "terminate during a run": ("print('up', flush=True); for_ever()", "SIGTERM", -signal.SIGTERM),
    "terminate while idle": ("print('up', flush=True); time.sleep(60)", "SIGTERM", -signal.SIGTERM),
    "terminate, handled": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('up', flush=True); for_ever()",
        "SIGTERM",
        7,
    ),
    "interrupt, then go on": (
        """
print('up', flush=True)
try:
    for_ever()
except KeyboardInterrupt:
    each_runs()
    sys.exit(8)
""",
        "SIGINT",
        8,
    ),
}


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_interrupts_at_any_moment_leave_a_pool_in_order() -> None:
    """Workers are never left in a run that the caller is not in, nor without memory."""
    script = """
from ostinato.devices.cpu import control as at
from tapes import prefix_sums
class Interrupt(Exception): pass
def interrupt(*_): raise Interrupt
signal.signal(signal.SIGALRM, interrupt)
job, x, sums = prefix_sums(select(), 40)
for pool in pools:
    pool._set(at.LINGER, 0)  # so that each run wakes sleepers
    interrupted = nbytes = 0
    while interrupted < 300:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0002 + 0.000001 * interrupted)
            while True:
                nbytes += 64
                pool.run(job.address, nbytes)
        except Interrupt:
            interrupted += 1
    x[:] = 1
    pool.run(job.address)
    assert (sums == np.arange(1, 41)).all()
print(interrupted)
"""
    with started(script) as process:
        out, err = process.communicate(timeout=LIMIT)
        assert (process.returncode, out.strip()) == (0, "300"), err
        assert not err, "an interrupt that nobody got"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("way", SIGNALLED)
def test_a_signal_ends_a_process(way: str) -> None:
    script, name, code = SIGNALLED[way]
    with started(script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        time.sleep(0.1)
        process.send_signal(signal.Signals[name])
        _, err = process.communicate(timeout=LIMIT)
        assert process.returncode == code, err


def test_an_idle_process_uses_no_cpu() -> None:
    script = """
time.sleep(0.1)
used = time.process_time()
time.sleep(1)
print(time.process_time() - used)
"""
    with started(script) as process:
        out, err = process.communicate(timeout=LIMIT)
        assert float(out) < 0.005, err


def ended(child: int, seconds: float) -> int | None:
    """The exit code of a child process; one that is still there after so long is killed, and that is None."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def check_fork(kind: type[Waiting] = InPython) -> None:
    threads = ThreadPool(2, ISA, _waiting=kind())
    shared = ThreadPool.of(2, ISA)
    for each in (threads, shared):
        each.run(EMPTY.address)
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            for each in (threads, shared):
                try:
                    each.run(EMPTY.address, 1 << 20)
                    os._exit(2)
                except PoolAfterFork:
                    each.close()
            mine = ThreadPool.of(2, ISA)
            assert mine is not shared
            check_order(mine, 3)
            mine.close()
            code = 0
        os._exit(code)
    assert ended(child, 3.0) == 0
    check_order(threads, 3)  # the parent goes on
    check_order(shared, 3)
    threads.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_refuses_what_its_parent_made(kind: str) -> None:
    check_fork({"InPython": InPython, "InFutex": InFutex}[kind])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_that_is_not_noticed_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(monkeypatch, pool, "_after_fork", nothing, check_fork)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_during_a_run_refuses() -> None:
    """Another thread holds the pool's lock as the process forks, and is not there to let go of it."""
    script = """
from ostinato.errors import PoolAfterFork
threading.Thread(target=for_ever, daemon=True).start()
for _ in range(4):
    time.sleep(0.03)
    child = os.fork()
    if not child:
        for pool in pools:
            try:
                pool.run(empty.address)
            except PoolAfterFork:
                print("refused", flush=True)
        sys.exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
"""
    with started(script) as process:
        out, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, err
        assert out.split() == ["refused"] * len(KINDS) * 4


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity")
def test_pinned_workers_keep_to_the_affinity_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_PIN", "1")
    allowed = os.sched_getaffinity(0)
    threads = min(2, len(allowed))
    pinned = ThreadPool(threads, ISA)
    check_order(pinned, 3)
    places = [os.sched_getaffinity(worker.native_id or 0) for worker in pinned._workers]
    assert all(len(place) == 1 and place <= allowed for place in places)
    assert len(set(map(frozenset, places))) == threads - 1
    assert os.sched_getaffinity(0) == allowed, "the caller is not ours to pin"
    pinned.close()
    assert pinning.places(len(allowed) + 1) == []


def test_second_hyper_threads_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 5}, raising=False)
    for cpu, siblings in enumerate(["0-1", "0-1", "2-3", "2-3", "4-5", "4-5"]):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert pinning.places(5, tmp_path) == [0, 2, 5, 1, 3]
    assert pinning.places(2, tmp_path) == [0, 2]
    assert pinning.places(6, tmp_path) == []
