"""Typed values of the emitted language, and those that a loop carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ostinato.devices.cpu.emit.types import I1, Type

if TYPE_CHECKING:
    from ostinato.devices.cpu.emit.builder import Function

Number = int | float


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A typed SSA value. Operators take values of the same type, or numbers."""

    f: Function
    type: Type
    name: str

    def _lift(self, other: Value | Number) -> Value:
        value = other if isinstance(other, Value) else self.f.const(self.type, other)
        assert value.type == self.type, f"{self.type} meets {value.type}"
        return value

    def _binary(self, other: Value | Number, float_op: str, int_op: str, swap: bool = False) -> Value:
        left, right = (self._lift(other), self) if swap else (self, self._lift(other))
        op = float_op if self.type.is_float else int_op
        assert op, f"no such operator for {self.type}"
        return self.f.op(self.type, f"{op} {self.type} {left.name}, {right.name}")

    def __add__(self, other: Value | Number) -> Value:
        return self._binary(other, "fadd", "add")

    def __radd__(self, other: Number) -> Value:
        return self._binary(other, "fadd", "add", swap=True)

    def __sub__(self, other: Value | Number) -> Value:
        return self._binary(other, "fsub", "sub")

    def __rsub__(self, other: Number) -> Value:
        return self._binary(other, "fsub", "sub", swap=True)

    def __mul__(self, other: Value | Number) -> Value:
        return self._binary(other, "fmul", "mul")

    def __rmul__(self, other: Number) -> Value:
        return self._binary(other, "fmul", "mul", swap=True)

    def __truediv__(self, other: Value | Number) -> Value:
        return self._binary(other, "fdiv", "")

    def __rtruediv__(self, other: Number) -> Value:
        return self._binary(other, "fdiv", "", swap=True)

    def __floordiv__(self, other: Value | Number) -> Value:
        """Unsigned."""
        return self._binary(other, "", "udiv")

    def __mod__(self, other: Value | Number) -> Value:
        """Unsigned."""
        return self._binary(other, "", "urem")

    def __and__(self, other: Value | Number) -> Value:
        return self._binary(other, "", "and")

    def __or__(self, other: Value | Number) -> Value:
        return self._binary(other, "", "or")

    def __xor__(self, other: Value | Number) -> Value:
        return self._binary(other, "", "xor")

    def __lshift__(self, other: Value | Number) -> Value:
        return self._binary(other, "", "shl")

    def __rshift__(self, other: Value | Number) -> Value:
        """Logical: zeros come in."""
        return self._binary(other, "", "lshr")

    def ashr(self, other: Value | Number) -> Value:
        """Shift right, arithmetic: the sign comes in."""
        return self._binary(other, "", "ashr")

    def __neg__(self) -> Value:
        if self.type.is_float:
            return self.f.op(self.type, f"fneg {self.type} {self.name}")
        return 0 - self

    def _compare(self, predicate: str, other: Value | Number) -> Value:
        """Ordered for floats: false where a NaN takes part. Signed for integers."""
        if self.type.is_float:
            op = f"fcmp o{predicate}"
        else:
            op = f"icmp {predicate if predicate in ('eq', 'ne') else 's' + predicate}"
        return self.f.op(I1.x(self.type.lanes), f"{op} {self.type} {self.name}, {self._lift(other).name}")

    def lt(self, other: Value | Number) -> Value:
        return self._compare("lt", other)

    def le(self, other: Value | Number) -> Value:
        return self._compare("le", other)

    def gt(self, other: Value | Number) -> Value:
        return self._compare("gt", other)

    def ge(self, other: Value | Number) -> Value:
        return self._compare("ge", other)

    def eq(self, other: Value | Number) -> Value:
        return self._compare("eq", other)

    def ne(self, other: Value | Number) -> Value:
        return self._compare("ne", other)

    def below(self, other: Value | Number) -> Value:
        """Unsigned less than: also false for what is negative when read as signed."""
        return self.f.op(I1.x(self.type.lanes), f"icmp ult {self.type} {self.name}, {self._lift(other).name}")

    def select(self, yes: Value, no: Value | Number) -> Value:
        """`yes` where this condition holds, else `no`."""
        other = yes._lift(no)
        return self.f.op(
            yes.type, f"select {self.type} {self.name}, {yes.type} {yes.name}, {yes.type} {other.name}"
        )

    def cast(self, how: str, to: Type) -> Value:
        """`fpext`, `fptrunc`, `sitofp`, `fptosi`, `sext`, `zext`, `trunc`, `bitcast`, `inttoptr` or
        `ptrtoint`."""
        to = to.x(self.type.lanes) if to.lanes == 0 and how != "bitcast" else to
        return self.f.op(to, f"{how} {self.type} {self.name} to {to}")

    def min(self, other: Value | Number) -> Value:
        other = self._lift(other)
        return self.lt(other).select(self, other)

    def max(self, other: Value | Number) -> Value:
        """`self` where it is larger, else the other one, also where either is NaN: one instruction on x86."""
        other = self._lift(other)
        return self.gt(other).select(self, other)


class Carried:
    """The values that a loop carries from turn to turn, as attributes."""

    def __init__(self, values: dict[str, Value]) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:  # for readers of types: attributes are the loop's own
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Value) -> None:
        self.__dict__[name] = value

    def __getitem__(self, name: str) -> Value:
        value: Value = self.__dict__[name]
        return value

    def __setitem__(self, name: str, value: Value) -> None:
        self.__dict__[name] = value
