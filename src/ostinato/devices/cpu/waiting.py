"""How idle workers sleep, and how a run wakes them."""

from __future__ import annotations

import ctypes
import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

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
            with_status(module.address("pool_serve")),
        )


class Waiting(ABC):
    """How the workers of one pool sleep. `syscall`, `futex` and `wake` go into its control block."""

    syscall = 0
    futex = 0
    wake = 0

    @abstractmethod
    def serve(self, native: Native, control: int, thread: int) -> None:
        """A worker's life, until it is stopped."""


class InFutex(Waiting):
    """Linux: workers sleep in the native code, and the native code wakes them."""

    def __init__(self) -> None:
        self.syscall = c_function("syscall")
        self.futex = _FUTEX[platform.machine()]

    @staticmethod
    def available() -> bool:
        return sys.platform == "linux" and platform.machine() in _FUTEX

    def serve(self, native: Native, control: int, thread: int) -> None:
        native.serve(control, thread)


class InPython(Waiting):
    """Everywhere: a worker comes back to Python for its sleep, and the native code calls Python to wake it.

    Who sleeps waits for a token, and passes it on when it wakes. One that is left over costs the next sleeper
    a look at the generation.
    """

    def __init__(self) -> None:
        self._tokens: SimpleQueue[None] = SimpleQueue()
        # C code only, so that no interrupt (SIGINT) comes in the middle of a run and leaves workers asleep.
        self._put = ctypes.CFUNCTYPE(None)(partial(self._tokens.put, None))
        self.wake = ctypes.cast(self._put, ctypes.c_void_p).value or 0

    def serve(self, native: Native, control: int, thread: int) -> None:
        generation = ctypes.c_int32.from_address(control + at.GENERATION)
        seen = ctypes.c_int32.from_address(control + at.line(thread) + at.SEEN)
        while native.serve(control, thread) == runner.SLEEP:
            while generation.value == seen.value:
                self._tokens.get()
            self._tokens.put(None)


def best() -> Waiting:
    """What this system does best."""
    return InFutex() if InFutex.available() else InPython()


def c_function(name: str) -> int:
    """The address of a function of the C library."""
    library = ctypes.CDLL("kernel32" if sys.platform == "win32" else None)
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def offer_cpu() -> int:
    """The address of the C function that lets other threads run first."""
    return c_function("SwitchToThread" if sys.platform == "win32" else "sched_yield")
