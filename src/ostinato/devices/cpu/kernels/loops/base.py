"""What kernels over views share: their arguments, and how they read and write elements."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32, I8, I16, I32, I64, LANES, Type
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.kernels.loops.nest import Extents, Nest
from ostinato.devices.cpu.views import Stride, View, symbols_of, times
from ostinato.ir.dtype import DType
from ostinato.ir.op import Primitive
from ostinato.ir.shape import DataDim
from ostinato.ir.symbols import SymId

STORED = {DType.F32: F32, DType.F16: I16, DType.I64: I64, DType.BOOL: I8}
"""Elements in memory. Half floats are bits there: not every instruction set knows their type."""
BITS = {DType.F32: I32, DType.F16: I16, DType.I64: I64, DType.BOOL: I8}
"""Elements where they are only moved, so that every pattern of bits comes through."""


@dataclass(frozen=True)
class LoopKernel(Kernel):
    """One primitive over views. An argument is the address of a view's buffer; element 0 is there.

    `params`: `in0` …, `out`, then each symbol's name for the address of an i64 with its value.
    """

    op: Primitive
    inputs: tuple[View, ...]
    output: View

    @property
    def symbols(self) -> tuple[SymId, ...]:
        """The symbols whose values it reads, by name."""
        amounts: list[Stride] = []
        for view in (*self.inputs, self.output):
            amounts += (view.offset, *view.strides)
            amounts += (times(dim) for dim in view.shape if not isinstance(dim, DataDim))
        return tuple(sorted(set(symbols_of(*amounts)), key=str))

    @property
    def params(self) -> tuple[str, ...]:
        operands = (*(f"in{i}" for i in range(len(self.inputs))), "out")
        names = tuple(map(str, self.symbols))
        taken = [name for name in names if name in {*operands, "error"} or name.endswith("_n")]
        assert not taken, f"{taken} have a meaning of their own"
        return (*operands, *names)

    @property
    @abstractmethod
    def nest(self) -> Nest:
        """The loops whose items it works on."""

    def work(self) -> tuple[int, SymId | None, int]:
        """(base, symbol, divisor) for base · ceil(symbol/divisor) items, or base where there is no symbol."""
        return self.nest.work

    def extents(self, f: Function, args: dict[str, Value]) -> Extents:
        """The values of the symbols in this call."""
        return {symbol: f.load(I64, args[str(symbol)]) for symbol in self.symbols}


@dataclass(frozen=True, slots=True)
class Reader:
    """Elements of an operand along a run, from `pointer` on: each `step` after the one before it.

    `repeated` is the one element where the step is 0, read once: a store in the loop can't have changed it.
    """

    f: Function
    pointer: Value
    type: Type
    step: Value | int
    repeated: Value | None

    def one(self, i: Value) -> Value:
        """Element i."""
        if self.repeated is not None:
            return self.repeated
        return self.f.load(self.type, self.pointer, i * self.step * self.type.nbytes)

    def vector(self, i: Value, count: Value | int) -> Value:
        """Elements i … i + count - 1 in the first lanes, for a step of 0 or 1."""
        if self.repeated is not None:
            return self.f.broadcast(self.repeated, LANES)
        return self.f.load_part(self.type.x(LANES), self.pointer, i * self.type.nbytes, count)


def reader(f: Function, base: Value, offset: Value, type: Type, step: Value | int) -> Reader:
    """Reads elements of `type` from number `offset` of the buffer at `base` on."""
    pointer = f.at(base, offset * type.nbytes)
    repeated = f.load(type, pointer) if isinstance(step, int) and step == 0 else None
    return Reader(f, pointer, type, step, repeated)


@dataclass(frozen=True, slots=True)
class Writer:
    """Elements of the result along a run, as `Reader` has them."""

    f: Function
    pointer: Value
    step: Value | int

    def one(self, value: Value, i: Value) -> None:
        self.f.store(value, self.pointer, i * self.step * value.type.nbytes)

    def vector(self, value: Value, i: Value, count: Value | int) -> None:
        """The first `count` lanes as the elements i …, for a step of 1."""
        self.f.store_part(value, self.pointer, i * value.type.scalar.nbytes, count)


def in_vectors(f: Function, count: Value | int) -> Iterator[tuple[Value, Value | int]]:
    """Write a loop over `count` elements in vectors: (first element, lanes) of each, the last one partial."""
    if isinstance(count, int):
        whole = count - count % LANES
        if whole:
            for i, _ in f.range(0, whole, LANES):
                yield i, LANES
        if count % LANES:
            yield f.index(whole), count % LANES
        return
    rest = count % LANES
    whole_lanes = count - rest
    for i, _ in f.range(0, whole_lanes, LANES):
        yield i, LANES
    for _ in f.when(rest.ne(0)):
        yield whole_lanes, rest


def are_vectors(*steps: Stride) -> bool:
    """Whether runs with these steps, the result's last, are read and written as vectors."""
    return all(step in (0, 1) for step in steps) and steps[-1] == 1
