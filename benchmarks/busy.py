"""A tape whose steps only count, so that what is measured is the pool and not the memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ostinato.devices.cpu.compiler import compile_module
from ostinato.devices.cpu.emit.builder import Function, Module, Value
from ostinato.devices.cpu.isa import select
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.runner import BARRIER, STEP_BYTES


@dataclass(frozen=True)
class Count(Kernel):
    """Counts to `turns_n` for each item."""

    @property
    def params(self) -> tuple[str, ...]:
        return ("cells", "turns_n")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        for i, _ in f.range(f["low"], f["high"]):
            for turn, _ in f.range(0, args["turns_n"]):
                f.raw(f"store volatile i64 {turn.name}, ptr {f.at(args['cells'], i * 128).name}, align 8")


class Busy:
    """`steps` steps with a barrier each, in which every one of `threads` threads counts to `turns`."""

    def __init__(self, threads: int, *, steps: int, turns: int) -> None:
        module = Module(select())
        Count().emit(module)
        kernel = compile_module(module.text(), select(), None).address(Count().symbol)
        self._cells = np.zeros(threads * 16, np.int64)
        self._args = np.array([self._cells.ctypes.data, turns], np.int64)
        step = [kernel, self._args.ctypes.data, threads, 0, 1, BARRIER, 0, 0]
        self._steps = np.array([step] * steps, np.int64).reshape(steps, STEP_BYTES // 8)
        self._record = np.array([self._steps.ctypes.data, steps, 0], np.int64)
        self.address: int = self._record.ctypes.data
