"""What all programs of one CPU device share."""

from __future__ import annotations

from dataclasses import dataclass, field

from ostinato.devices.cpu.code_cache import CodeCache
from ostinato.devices.cpu.compiler import NativeModule, compile_module
from ostinato.devices.cpu.emit.builder import Module
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.pool import ThreadPool


@dataclass
class Engine:
    """The instruction set, where compiled code is kept, and how many threads run it."""

    isa: Isa
    cache: CodeCache | None
    threads: int
    _alone: dict[Kernel, int] = field(default_factory=dict, repr=False)

    @property
    def pool(self) -> ThreadPool:
        return ThreadPool.of(self.threads, self.isa)

    def compile(self, module: Module) -> NativeModule:
        return compile_module(module.text(), self.isa, self.cache)

    def address(self, kernel: Kernel) -> int:
        """A kernel in a module of its own, compiled when it is first asked for."""
        if kernel not in self._alone:
            module = Module(self.isa)
            kernel.emit(module)
            self._alone[kernel] = self.compile(module).address(kernel.symbol)
        return self._alone[kernel]
