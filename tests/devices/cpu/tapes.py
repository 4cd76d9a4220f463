"""Tapes of small kernels, for tests of the runner and its threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.devices.cpu.compiler import compile_module
from ostinato.devices.cpu.emit.builder import Function, Module, Value
from ostinato.devices.cpu.emit.types import F32, I32, I64, VOID
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.runner import BARRIER, SHARED


@dataclass(frozen=True)
class Neighbours(Kernel):
    """y[i] = x[i] + x[i - distance], where there is such an i: a step of a prefix sum over i64."""

    @property
    def params(self) -> tuple[str, ...]:
        return ("x", "y", "distance_n")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        for i, _ in f.range(f["low"], f["high"]):
            here = f.load(I64, args["x"], i * 8)
            at = i - args["distance_n"]
            there = at.ge(0)
            other = f.load(I64, args["x"], at.max(0) * 8)
            f.store(here + there.select(other, 0), args["y"], i * 8)


@dataclass(frozen=True)
class Mark(Kernel):
    """seen[i] += 1, who[i] = the thread: which items a step did, and who did them."""

    @property
    def params(self) -> tuple[str, ...]:
        return ("seen", "who")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        for i, _ in f.range(f["low"], f["high"]):
            f.store(f.load(I64, args["seen"], i * 8) + 1, args["seen"], i * 8)
            f.store(f["thread"], args["who"], i * 8)


@dataclass(frozen=True)
class Wherever(Kernel):
    """out[i] = the address of the scratch memory, whose first and last byte it writes."""

    last: int

    @property
    def params(self) -> tuple[str, ...]:
        return ("out",)

    def body(self, f: Function, args: dict[str, Value]) -> None:
        f.store(f.const(I32, 7), f["scratch"], 0)
        f.store(f.const(I32, 7), f["scratch"], self.last - 4)
        for i, _ in f.range(f["low"], f["high"]):
            f.store(f["scratch"].cast("ptrtoint", I64), args["out"], i * 8)


@dataclass(frozen=True)
class Divide(Kernel):
    """out[i] = x / y of f32 cells: depends on the floating-point mode."""

    @property
    def params(self) -> tuple[str, ...]:
        return ("x", "y", "out")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        for i, _ in f.range(f["low"], f["high"]):
            f.store(f.load(F32, args["x"]) / f.load(F32, args["y"]), args["out"], i * 4)


@dataclass(frozen=True)
class Busy(Kernel):
    """Counts to `turns_n`, for each item."""

    @property
    def params(self) -> tuple[str, ...]:
        return ("cell", "turns_n")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        for i, _ in f.range(f["low"], f["high"]):
            for j, _ in f.range(0, args["turns_n"]):
                f.raw(f"store volatile i64 {j.name}, ptr {f.at(args['cell'], i * 128).name}, align 8")


@dataclass(frozen=True)
class Gathering(Kernel):
    """Counts its items in `done`, i32; but item 0 first waits, up to a second or so, until `want_n` are."""

    @property
    def params(self) -> tuple[str, ...]:
        return ("done", "want_n", "waited")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        want = args["want_n"].cast("trunc", I32)
        for i, _ in f.range(f["low"], f["high"]):
            for _ in f.when(i.eq(0)):
                for s in f.until(
                    lambda s: f.atomic_load(args["done"]).ge(want) | s.turns.ge(1 << 28), turns=f.index(0)
                ):
                    s.turns = s.turns + 1
                f.store(s.turns, args["waited"])
            f.atomic_add(args["done"], 0, 1)


SCRATCH = 100_000
KERNELS: tuple[Kernel, ...] = (Neighbours(), Mark(), Wherever(SCRATCH), Divide(), Busy(), Gathering())


@dataclass(frozen=True)
class Step:
    kernel: Kernel
    args: Sequence[np.ndarray | int]
    items: int
    cell: np.ndarray | None = None
    divisor: int = 1
    barrier: bool = False
    shared: bool = False


class Job:
    """The record of a job, and everything that it points to."""

    def __init__(self, isa: Isa, steps: Sequence[Step], *, threads: int = 0, profile: bool = False) -> None:
        module = Module(isa)
        for kernel in KERNELS:
            kernel.emit(module)
        native = compile_module(module.text(), isa, None)
        self.kept = list(steps)
        self.args = [np.array([_cell(a) for a in step.args] or [0], np.int64) for step in steps]
        self.steps = np.array(
            [
                [
                    native.address(step.kernel.symbol),
                    args.ctypes.data,
                    step.items,
                    0 if step.cell is None else step.cell.ctypes.data,
                    step.divisor,
                    BARRIER * step.barrier | SHARED * step.shared,
                    -1,
                    -1,
                ]
                for step, args in zip(steps, self.args, strict=True)
            ],
            np.int64,
        ).reshape(-1, 8)
        self.profile = np.zeros((threads, len(steps), 2), np.uint64)
        where = self.profile.ctypes.data if profile else 0
        self.record = np.array([self.steps.ctypes.data, len(steps), where], np.int64)
        self.address = self.record.ctypes.data


def _cell(value: np.ndarray | int) -> int:
    return value.ctypes.data if isinstance(value, np.ndarray) else value


def prefix_sums(isa: Isa, count: int, *, barrier: bool = True) -> tuple[Job, np.ndarray, np.ndarray]:
    """(a job, its input, its output): prefix sums in log2(count) steps, each of which reads what all threads
    wrote in the one before."""
    first = np.zeros(count, np.int64)
    other = np.zeros(count, np.int64)
    steps, distance, x, y = [], 1, first, other
    while distance < count:
        steps.append(Step(Neighbours(), (x, y, distance), count, barrier=barrier))
        distance, x, y = distance * 2, y, x
    return Job(isa, steps), first, x


def float_mode(isa: Isa) -> tuple[Callable[[], int], Callable[[int], None]]:
    """(get, set): the calling thread's MXCSR."""
    module = Module(isa)
    f = module.function("get_mode", "ptr word")
    f.call("llvm.x86.sse.stmxcsr", VOID, f["word"])
    f.ret()
    f = module.function("set_mode", "ptr word")
    f.call("llvm.x86.sse.ldmxcsr", VOID, f["word"])
    f.ret()
    native = compile_module(module.text(), isa, None)
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    read, write = (signature(native.address(name)) for name in ("get_mode", "set_mode"))
    word = np.zeros(1, np.uint32)

    def get() -> int:
        read(word.ctypes.data)
        return int(word[0])

    def set_(mode: int) -> None:
        word[0] = mode
        write(word.ctypes.data)

    return get, set_
