"""What all programs of one CPU device share."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from ostinato.devices.cpu.code_cache import CodeCache
from ostinato.devices.cpu.compiler import compile_written
from ostinato.devices.cpu.emit.builder import Module
from ostinato.devices.cpu.idle_pages import release_compiler
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.pool import ThreadPool
from ostinato.devices.cpu.profile import Recorder

SETTLED = 1.0
"""Seconds without compiling after which nothing more is expected to be."""


@dataclass
class Engine:
    """The instruction set, where compiled code is kept, and how many threads run it."""

    isa: Isa
    cache: CodeCache | None
    threads: int
    recorder: Recorder | None = None
    """While a profile is taken: runs go through it."""
    _pool: ThreadPool | None = field(default=None, repr=False)
    _settling: threading.Timer | None = field(default=None, repr=False)
    _compiled: dict[tuple[Kernel, ...], Mapping[str, int]] = field(default_factory=dict, repr=False)

    @property
    def pool(self) -> ThreadPool:
        """The pool of so many threads. In a child of a fork it is still the parent's, which refuses."""
        pool = self._pool
        if pool is None or pool.threads != self.threads or pool.closed:
            pool = self._pool = ThreadPool.of(self.threads, self.isa)
        return pool

    def addresses(self, kernels: Iterable[Kernel]) -> Mapping[str, int]:
        """Kernels in one module, by symbol; written and compiled when they are first asked for together."""
        distinct = tuple(dict.fromkeys(kernels))
        if distinct not in self._compiled:
            native = compile_written(distinct, partial(written, distinct, self.isa), self.isa, self.cache)
            self._release_later()
            symbols = [kernel.symbol for kernel in distinct]
            self._compiled[distinct] = {symbol: native.address(symbol) for symbol in symbols}
        return self._compiled[distinct]

    def _release_later(self) -> None:
        """Plans are compiled one soon after another: LLVM's pages go when that is over."""
        if self._settling is not None:
            self._settling.cancel()
        self._settling = threading.Timer(SETTLED, release_compiler)
        self._settling.daemon = True
        self._settling.start()

    def address(self, kernel: Kernel) -> int:
        """A kernel in a module of its own."""
        return self.addresses((kernel,))[kernel.symbol]


def written(kernels: Iterable[Kernel], isa: Isa) -> str:
    """The IR of kernels in one module."""
    module = Module(isa)
    for kernel in kernels:
        kernel.emit(module)
    return module.text()
