"""What a kernel is: a value that names itself, emits itself, and is called over a range of work items.

Every kernel has one native signature:

    void kernel(ptr args, i64 low, i64 high, ptr scratch, i64 thread)

`args` is an array of 8-byte cells, one for each of the kernel's `params`: the address of a buffer, or a
number where the parameter is called `…_n`. The kernel does the work items low … high-1; items of one step
don't depend on each other, and threads get disjoint ranges. `scratch` is the thread's own, 64-byte aligned,
at least `scratch_bytes` long, with undefined contents. `thread` is the number of the calling thread.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from functools import lru_cache

from ostinato.devices.cpu.emit.builder import Function, Module, Value
from ostinato.devices.cpu.emit.types import I64, PTR

SIGNATURE = "ptr args, i64 low, i64 high, ptr scratch, i64 thread"


class Kernel(ABC):
    """Base of the kernels: frozen dataclasses whose fields are what the code is specialised for.

    Equal fields, equal code; a module holds each once."""

    @property
    @abstractmethod
    def params(self) -> tuple[str, ...]:
        """Names of the argument cells, in order."""

    @property
    def symbol(self) -> str:
        """The function's name in the module: the same for equal kernels."""
        return _symbol(self)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of thread-private memory that a call needs."""
        return 0

    @property
    def shared(self) -> bool:
        """Whether threads take items as they come, some at a time, and not an even share each: for kernels
        whose steps take long. A thread then makes several calls."""
        return False

    def emit(self, module: Module) -> None:
        """Write the function into `module`, once."""
        if self.symbol not in module:
            f = module.function(self.symbol, SIGNATURE)
            self.body(f, self._arguments(f))
            f.ret()

    @abstractmethod
    def body(self, f: Function, args: dict[str, Value]) -> None:
        """Write the work of the items f["low"] … f["high"] - 1; `args` are the loaded cells by name."""

    def _arguments(self, f: Function) -> dict[str, Value]:
        return {
            name: f.load(I64 if name.endswith("_n") else PTR, f["args"], 8 * at)
            for at, name in enumerate(self.params)
        }


@lru_cache(maxsize=4096)
def _symbol(kernel: Kernel) -> str:
    digest = hashlib.sha256(repr(kernel).encode()).hexdigest()[:12]
    return f"{type(kernel).__name__.lower()}_{digest}"
