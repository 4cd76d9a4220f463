"""The threads that a tape runs on: the caller, and workers that wait between runs."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from typing import ClassVar

from ostinato.devices.cpu import control as at
from ostinato.devices.cpu import memory, pinning, sync, waiting
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.waiting import Native, Waiting
from ostinato.errors.base import OstinatoError
from ostinato.errors.cpu import PoolAfterFork, PoolClosed
from ostinato.host import env

# In pauses of x86, 15 to 45 ns each.
_LINGER = 1 << 14  # of an idle worker: a quarter of a millisecond at least, the Python between two tokens
_PATIENCE = 1 << 10  # at a barrier: twice what it takes to sleep and to wake
_LEAVE_SECONDS = 10.0


class ThreadPool:
    """`threads` threads that run one job at a time: the caller of `run`, and threads-1 workers.

    Any thread may call `run`; calls wait for each other. Results don't depend on the number of threads as
    long as a kernel's items are independent.

    Raises NativeCompilerMissing and the like (see `compiler`), and RuntimeError where the system starts no
    more threads.
    """

    _shared: ClassVar[dict[tuple[int, str], ThreadPool]] = {}
    _all: ClassVar[weakref.WeakSet[ThreadPool]] = weakref.WeakSet()
    _sharing: ClassVar[threading.RLock] = threading.RLock()

    def __init__(self, threads: int, isa: Isa, *, _waiting: Waiting | None = None) -> None:
        assert threads >= 1
        self.threads = threads
        self._waiting = waiting.best() if _waiting is None else _waiting
        self._native = Native.of(isa)
        self._places = pinning.places(threads) if env.pin() else []
        self._callers = _cpus().difference(self._places[1:])
        self._block = memory.allocate(at.nbytes(threads))
        self._control = self._block.address
        self._scratch: list[memory.Buffer] = []
        self.scratch_bytes = 0
        """Of each thread, so far."""
        self._lock = threading.Lock()
        self._start = self._run_pinned if self._places else self._native.run
        self._refusal: type[OstinatoError] = PoolClosed
        self._set(at.THREADS, threads)
        # Where threads are more than CPUs, one that loops is in the way.
        self._set(at.PATIENCE, sync.turns(isa, _PATIENCE) if threads <= len(_cpus()) else 0)
        self._set(at.LINGER, sync.turns(isa, _LINGER))
        self._set(at.WAKE, self._waiting.wake)
        self._set(at.YIELD, waiting.offer_cpu())
        self._set(at.SYSCALL, self._waiting.syscall)
        self._set(at.FUTEX, self._waiting.futex)
        self._workers = [
            threading.Thread(
                target=self._serve,
                args=(thread,),
                name=f"ostinato-cpu-{thread}",
                daemon=True,
            )
            for thread in range(1, threads)
        ]
        ThreadPool._all.add(self)
        try:
            for worker in self._workers:
                worker.start()
        except RuntimeError:
            self.close()
            raise

    @classmethod
    def of(cls, threads: int, isa: Isa) -> ThreadPool:
        """The process's pool of this size, made when it is first asked for."""
        with cls._sharing:
            pool = cls._shared.get((threads, isa.name))
            if pool is None:
                pool = cls._shared[threads, isa.name] = cls(threads, isa)
            return pool

    def run(self, job: int, scratch_bytes: int = 0) -> None:
        """Run the job whose record is at the address `job` (see `runner`), to its end.

        Each thread's scratch memory has at least `scratch_bytes`. An interrupt (SIGINT) is raised when the
        run is over. Raises PoolAfterFork in a child process, PoolClosed once the pool has stopped.
        """
        if scratch_bytes > self.scratch_bytes:
            self._grow(scratch_bytes)
        with self._lock:
            refused = self._start(self._control, job)
        if refused:
            raise self._refusal()

    @property
    def closed(self) -> bool:
        """Whether it has stopped, and another can take its place."""
        return self._start is _refuse and self._refusal is PoolClosed

    def close(self) -> None:
        """Stop the workers, after the run in flight if there is one. `of` makes a new pool then."""
        with ThreadPool._sharing:
            for key in [key for key, pool in ThreadPool._shared.items() if pool is self]:
                del ThreadPool._shared[key]
        if not self._lock.acquire(timeout=_LEAVE_SECONDS):
            return
        try:
            # Those who wait for the lock find this when they have it: a run without workers would never end.
            self._start = _refuse
            self._set(at.STOP, 1, ctypes.c_int32)
            self._native.publish(self._control, 0)
        finally:
            self._lock.release()
        for worker in self._workers:
            if worker.ident is not None:
                worker.join(_LEAVE_SECONDS)

    def _serve(self, thread: int) -> None:  # a worker holds the pool, whose memory it works on
        if self._places:
            pinning.stay({self._places[thread]})
        self._waiting.serve(self._native, self._control, thread)

    def _run_pinned(self, control: int, job: int) -> int:
        """A caller on a worker's CPU would take turns with it, and Linux may leave it there for long."""
        return pinning.staying(self._callers, self._native.run, control, job)

    def _grow(self, nbytes: int) -> None:
        with self._lock:
            if nbytes > self.scratch_bytes:
                stride = -(-nbytes // 4096) * 4096  # no two threads on one page: each touches its own first
                self._scratch.append(memory.allocate(stride * self.threads))
                # An interrupt may come at any line: the block never names memory that is gone.
                self._set(at.SCRATCH, self._scratch[-1].address)
                self._set(at.STRIDE, stride)
                self.scratch_bytes = stride
                del self._scratch[:-1]

    def _set(
        self, offset: int, value: int, kind: type[ctypes.c_int64 | ctypes.c_int32] = ctypes.c_int64
    ) -> None:
        kind.from_address(self._control + offset).value = value

    def _abandon(self) -> None:
        """In a child process there are no workers, and the lock may be held by a thread that isn't there."""
        self._lock = threading.Lock()
        self._start = _refuse
        self._refusal = PoolAfterFork
        self._workers = []


def _refuse(control: int, job: int) -> int:
    return 1


def _cpus() -> set[int]:
    """The CPUs that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _after_fork() -> None:
    """The guard of child processes: a run there would wait for workers that the fork left behind."""
    for pool in ThreadPool._all:
        pool._abandon()
    ThreadPool._all.clear()
    ThreadPool._shared.clear()
    ThreadPool._sharing = threading.RLock()


def _leave() -> None:
    """Before the interpreter takes memory apart, no native code may run on it."""
    for pool in list(ThreadPool._all):
        pool.close()


atexit.register(_leave)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _after_fork())
