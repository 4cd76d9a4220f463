"""How idle workers sleep, and how a run wakes them."""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from ostinato.devices.cpu import control as at
from ostinato.devices.cpu import runner
from ostinato.devices.cpu.code_cache import CodeCache
from ostinato.devices.cpu.compiler import compile_module
from ostinato.devices.cpu.isa import Isa

_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
"""The number of futex(2)."""


@dataclass(frozen=True, eq=False)
class Native:
    """The runner's functions; each releases the interpreter while it runs."""

    run: Callable[[int, int], int]
    publish: Callable[[int, int], None]
    work: Callable[[int, int], None]
    serve: Callable[[int, int], int]

    @classmethod
    def of(cls, isa: Isa) -> Native:
        """Raises what `compile_module` does."""
        module = compile_module(runner.emit(isa), isa, CodeCache.of_user())
        with_status = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
        without = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
        return cls(
            with_status(module.address("pool_run")),
            without(module.address("pool_publish")),
            without(module.address("pool_work")),
            with_status(module.address("pool_serve")),
        )


class Waiting(ABC):
    """One pool's way to sleep. `syscall` and `futex` go into its control block."""

    syscall = 0
    futex = 0

    @abstractmethod
    def starter(self, native: Native) -> Callable[[int, int], int]:
        """A function of the control block and a job that runs it and returns 0."""

    @abstractmethod
    def serve(self, native: Native, control: int, thread: int) -> None:
        """A worker's life, until it is stopped."""

    @abstractmethod
    def alarm(self, native: Native, control: int) -> None:
        """Wake all workers without a job, so that they see the stop."""


class InFutex(Waiting):
    """Linux: a worker sleeps in the native code, and the native code wakes it."""

    def __init__(self) -> None:
        self.syscall = c_function("syscall")
        self.futex = _FUTEX[platform.machine()]

    @staticmethod
    def available() -> bool:
        return sys.platform == "linux" and platform.machine() in _FUTEX

    def starter(self, native: Native) -> Callable[[int, int], int]:
        return native.run

    def serve(self, native: Native, control: int, thread: int) -> None:
        native.serve(control, thread)

    def alarm(self, native: Native, control: int) -> None:
        native.publish(control, 0)


class InCondition(Waiting):
    """Everywhere: a worker comes back to Python for its sleep, and a run is two native calls."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())

    def starter(self, native: Native) -> Callable[[int, int], int]:
        def start(control: int, job: int) -> int:
            self._publish(native, control, job)
            native.work(control, 0)
            return 0

        return start

    def serve(self, native: Native, control: int, thread: int) -> None:
        generation = ctypes.c_int32.from_address(control + at.GENERATION)
        seen = ctypes.c_int32.from_address(control + at.line(thread) + at.SEEN)
        while native.serve(control, thread) == runner.SLEEP:
            with self._changed:
                while generation.value == seen.value:
                    self._changed.wait()

    def alarm(self, native: Native, control: int) -> None:
        self._publish(native, control, 0)

    def _publish(self, native: Native, control: int, job: int) -> None:
        with self._changed:  # within it nobody is on the way to sleep
            native.publish(control, job)
            self._changed.notify_all()


def best() -> Waiting:
    """What this system does best."""
    return InFutex() if InFutex.available() else InCondition()


def c_function(name: str) -> int:
    """The address of a function of the C library."""
    library = ctypes.CDLL("kernel32" if sys.platform == "win32" else None)
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def offer_cpu() -> int:
    """The address of the C function that lets other threads run first."""
    return c_function("SwitchToThread" if sys.platform == "win32" else "sched_yield")
