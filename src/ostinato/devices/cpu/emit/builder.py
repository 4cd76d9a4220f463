"""Modules and functions of the emitted language.

    f = module.function("scale", "ptr x, ptr y, i64 n")
    for i, s in f.range(0, f["n"], 16, total=f.zero(F32V)):
        v = f.load(F32V, f["x"], i * 4)
        f.store(v * 2.0, f["y"], i * 4)
        s.total = s.total + v
    f.ret()

Offsets are bytes. Float arithmetic carries no fast-math flag: what is written is what runs, in that order.
Where a product and a sum may be one rounding, the kernel says so with `fma`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.flow import Flow
from ostinato.devices.cpu.emit.types import I1, I32, I64, PTR, VOID, Type
from ostinato.devices.cpu.emit.value import Carried, Number, Value
from ostinato.devices.cpu.isa import Isa


class Module:
    """The functions of one native module, for one instruction set."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self._functions: dict[str, Function] = {}
        self._declarations: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    def function(
        self, name: str, params: str, returns: Type = VOID, *, exported: bool = True, noalias: bool = False
    ) -> Function:
        """A new function; `params` as in IR without the percent signs: `"ptr x, <4 x i8> v"`."""
        assert name not in self._functions, name
        function = self._functions[name] = Function(self, name, params, returns, exported, noalias)
        return function

    def declare(self, text: str) -> None:
        self._declarations.add(text)

    def text(self) -> str:
        """The IR; the same functions give the same text."""
        parts = [*sorted(self._declarations), *(function.text() for function in self._functions.values())]
        return "\n".join(parts) + "\n"


class Function(Flow):
    """One function being written. Parameters are its items: `f["x"]`."""

    def __init__(
        self, module: Module, name: str, params: str, returns: Type, exported: bool, noalias: bool
    ) -> None:
        self.module = module
        self.name = name
        self._returns = returns
        self._linkage = "" if exported else "internal "
        self._counter = 0
        self._block = "entry"
        self._lines: list[str] = []
        self._params: dict[str, Value] = {}
        declared = []
        for param in filter(None, (part.strip() for part in params.split(","))):
            kind, label = param.rsplit(maxsplit=1)
            self._params[label] = Value(self, Type.of(kind), f"%{label}")
            declared.append(f"{kind} noalias %{label}" if noalias and kind == "ptr" else f"{kind} %{label}")
        self._declared = ", ".join(declared)

    def __getitem__(self, param: str) -> Value:
        return self._params[param]

    def text(self) -> str:
        head = f"define {self._linkage}{self._returns} @{self.name}({self._declared}) noinline nounwind"
        attributes = ' "prefer-vector-width"="512" "min-legal-vector-width"="512"'
        return "\n".join([f"{head}{attributes} {{", "entry:", *self._lines, "}"])

    # instructions

    def raw(self, line: str) -> None:
        self._lines.append("  " + line)

    def fresh(self) -> str:
        self._counter += 1
        return f"%v{self._counter}"

    def op(self, type: Type, text: str) -> Value:
        name = self.fresh()
        self.raw(f"{name} = {text}")
        return Value(self, type, name)

    def const(self, type: Type, value: Number) -> Value:
        return Value(self, type, type.literal(value))

    def zero(self, type: Type) -> Value:
        return self.const(type, 0)

    def vector(self, type: Type, values: Sequence[Number]) -> Value:
        """A constant vector, lane by lane."""
        assert type.lanes == len(values)
        lanes = ", ".join(f"{type.element} {type.scalar.literal(v)}" for v in values)
        return Value(self, type, f"<{lanes}>")

    def index(self, value: Value | int) -> Value:
        """An i64: a number, or a value that is one already."""
        return value if isinstance(value, Value) else self.const(I64, value)

    def ret(self, value: Value | None = None) -> None:
        self.raw("ret void" if value is None else f"ret {value.type} {value.name}")

    # memory

    def at(self, pointer: Value, offset: Value | int) -> Value:
        """`pointer` plus bytes."""
        if isinstance(offset, int) and offset == 0:
            return pointer
        return self.op(PTR, f"getelementptr i8, ptr {pointer.name}, i64 {self.index(offset).name}")

    def load(self, type: Type, pointer: Value, offset: Value | int = 0, align: int | None = None) -> Value:
        where = self.at(pointer, offset)
        return self.op(type, f"load {type}, ptr {where.name}, align {align or type.align}")

    def store(self, value: Value, pointer: Value, offset: Value | int = 0, align: int | None = None) -> None:
        where = self.at(pointer, offset)
        self.raw(f"store {value.type} {value.name}, ptr {where.name}, align {align or value.type.align}")

    def load_part(self, type: Type, pointer: Value, offset: Value | int, count: Value | int) -> Value:
        """The first `count` lanes from memory, zeros in the others; nothing past them is read."""
        if isinstance(count, int):
            assert 0 <= count <= type.lanes
            if count == type.lanes:
                return self.load(type, pointer, offset)
            if count == 0:
                return self.zero(type)
        mask = self.first_lanes(type.lanes, count)
        name = f"llvm.masked.load.{type.suffix}.p0"
        self.module.declare(f"declare {type} @{name}(ptr, {mask.type}, {type})")
        where = f"ptr align {type.align} {self.at(pointer, offset).name}"
        return self.op(type, f"call {type} @{name}({where}, {mask.type} {mask.name}, {type} zeroinitializer)")

    def store_part(self, value: Value, pointer: Value, offset: Value | int, count: Value | int) -> None:
        """Store the first `count` lanes; nothing past them is written."""
        type = value.type
        if isinstance(count, int):
            assert 0 <= count <= type.lanes
            if count == type.lanes:
                self.store(value, pointer, offset)
            if count in (0, type.lanes):
                return
        mask = self.first_lanes(type.lanes, count)
        name = f"llvm.masked.store.{type.suffix}.p0"
        self.module.declare(f"declare void @{name}({type}, ptr, {mask.type})")
        where = f"ptr align {type.align} {self.at(pointer, offset).name}"
        self.raw(f"call void @{name}({type} {value.name}, {where}, {mask.type} {mask.name})")

    def first_lanes(self, lanes: int, count: Value | int) -> Value:
        """A condition that holds in the first `count` lanes."""
        if isinstance(count, Value):
            return self.iota(lanes).lt(self.broadcast(count.cast("trunc", I32), lanes))
        return self.vector(I1.x(lanes), [int(lane < count) for lane in range(lanes)])

    def prefetch(self, pointer: Value, offset: Value | int = 0, locality: int = 3) -> None:
        self.module.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        where = self.at(pointer, offset)
        self.raw(f"call void @llvm.prefetch.p0(ptr {where.name}, i32 0, i32 {locality}, i32 1)")

    def unrelated(self, pointer: Value) -> Value:
        """The same address as one that LLVM knows nothing about: loads from both stay two."""
        return self.op(PTR, f'call ptr asm "", "=r,0"(ptr {pointer.name})')

    # vectors

    def broadcast(self, value: Value, lanes: int = 16) -> Value:
        type = value.type.x(lanes)
        first = self.op(type, f"insertelement {type} poison, {value.type} {value.name}, i32 0")
        return self.shuffle(first, [0] * lanes)

    def lane(self, value: Value, index: int) -> Value:
        return self.op(value.type.scalar, f"extractelement {value.type} {value.name}, i32 {index}")

    def insert(self, vector: Value, value: Value, index: int) -> Value:
        return self.op(
            vector.type,
            f"insertelement {vector.type} {vector.name}, {value.type} {value.name}, i32 {index}",
        )

    def shuffle(self, value: Value, lanes: Sequence[int], other: Value | None = None) -> Value:
        """The numbered lanes of `value` (and, counted on, of `other`)."""
        second = other.name if other is not None else "poison"
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        if not any(lanes):
            mask_text = f"<{len(lanes)} x i32> zeroinitializer"
        else:
            mask_text = f"<{len(lanes)} x i32> <{mask}>"
        text = f"shufflevector {value.type} {value.name}, {value.type} {second}, {mask_text}"
        return self.op(value.type.x(len(lanes)), text)

    def concat(self, low: Value, high: Value) -> Value:
        return self.shuffle(low, range(low.type.lanes + high.type.lanes), high)

    def iota(self, lanes: int = 16) -> Value:
        """0, 1, 2, … as i32."""
        return self.vector(I32.x(lanes), range(lanes))

    def halves(self, value: Value) -> tuple[Value, Value]:
        """The lower and the upper lanes."""
        half = value.type.lanes // 2
        return self.shuffle(value, range(half)), self.shuffle(value, range(half, 2 * half))

    def split(self, value: Value, parts: int) -> list[Value]:
        """The lanes in so many vectors, from the lowest on."""
        size = value.type.lanes // parts
        return [self.shuffle(value, range(first, first + size)) for first in range(0, value.type.lanes, size)]

    def join(self, parts: Sequence[Value]) -> Value:
        """The inverse, of a power of two."""
        while len(parts) > 1:
            parts = [self.concat(low, high) for low, high in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def sum(self, value: Value) -> Value:
        """All lanes added, the upper half to the lower until one is left: one order for every set."""
        while value.type.lanes > 1:
            low, high = self.halves(value)
            value = low + high
        return self.lane(value, 0)

    def max(self, value: Value) -> Value:
        """The largest lane. With NaN among them, where it stands decides whether it wins (`Value.max`)."""
        while value.type.lanes > 1:
            low, high = self.halves(value)
            value = low.max(high)
        return self.lane(value, 0)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a·b + c in one rounding; in two where the instruction set has no such instruction."""
        if not self.module.isa.fma:
            return a * b + c
        return self.intrinsic("fma", a, b, c)

    # calls

    def intrinsic(
        self, base: str, *args: Value, returns: Type | None = None, suffix: str | None = None
    ) -> Value:
        """An LLVM intrinsic overloaded on its first operand's type: `intrinsic("sqrt", x)`."""
        suffix = args[0].type.suffix if suffix is None else suffix
        name = f"llvm.{base}.{suffix}" if suffix else f"llvm.{base}"
        return self.call(name, args[0].type if returns is None else returns, *args)

    def call(self, name: str, returns: Type, *args: Value) -> Value:
        """Call a function of this module, or an intrinsic."""
        if name.startswith("llvm."):
            self.module.declare(f"declare {returns} @{name}({', '.join(str(a.type) for a in args)})")
        text = f"call {returns} @{name}({', '.join(f'{a.type} {a.name}' for a in args)})"
        if returns == VOID:
            self.raw(text)
            return Value(self, VOID, "")
        return self.op(returns, text)

    def call_at(self, address: Value, returns: Type, *args: Value) -> Value:
        """Call the function whose address this pointer is."""
        text = f"call {returns} {address.name}({', '.join(f'{a.type} {a.name}' for a in args)})"
        if returns == VOID:
            self.raw(text)
            return Value(self, VOID, "")
        return self.op(returns, text)

    # atomics, on aligned i32 words

    def atomic_load(self, pointer: Value, offset: Value | int = 0, order: str = "acquire") -> Value:
        return self.op(I32, f"load atomic i32, ptr {self.at(pointer, offset).name} {order}, align 4")

    def atomic_store(
        self, value: Value, pointer: Value, offset: Value | int = 0, order: str = "release"
    ) -> None:
        self.raw(f"store atomic i32 {value.name}, ptr {self.at(pointer, offset).name} {order}, align 4")

    def atomic_add(self, pointer: Value, offset: Value | int, value: int, order: str = "acq_rel") -> Value:
        """Add and return what was there before."""
        return self.op(I32, f"atomicrmw add ptr {self.at(pointer, offset).name}, i32 {value} {order}")


__all__ = ["Carried", "Function", "Module", "Value"]
