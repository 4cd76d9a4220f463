"""Elementwise primitives over views that broadcast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32, I8, I16, I64, Type
from ostinato.devices.cpu.kernels import math
from ostinato.devices.cpu.kernels.halves import widen
from ostinato.devices.cpu.kernels.loops.base import (
    BITS,
    STORED,
    LoopKernel,
    Writer,
    are_vectors,
    in_vectors,
    reader,
)
from ostinato.devices.cpu.kernels.loops.nest import Nest, amount, nest
from ostinato.devices.cpu.kernels.rounding import narrow
from ostinato.devices.cpu.views import broadcast_to
from ostinato.ir.dtype import DType
from ostinato.ir.op import Primitive
from ostinato.ir.ops import elementwise

COMPUTED: Mapping[type[Primitive], Callable[..., Value]] = {
    elementwise.Add: lambda f, a, b: a + b,
    elementwise.Sub: lambda f, a, b: a - b,
    elementwise.Mul: lambda f, a, b: a * b,
    elementwise.Div: lambda f, a, b: a / b,
    elementwise.Less: lambda f, a, b: a.lt(b),
    elementwise.LessEqual: lambda f, a, b: a.le(b),
    elementwise.And: lambda f, a, b: a & b,
    elementwise.Where: lambda f, condition, yes, no: condition.select(yes, no),
    elementwise.Neg: lambda f, x: -x,
    elementwise.Exp: math.exp,
    elementwise.Tanh: math.tanh,
    elementwise.Sqrt: lambda f, x: f.intrinsic("sqrt", x),
}
"""The result's value, of one element or of a vector of them; conditions are i1."""


@dataclass(frozen=True)
class Elementwise(LoopKernel):
    """Element [i, j, …] of the result comes of the operands' elements [i, j, …]."""

    @cached_property
    def nest(self) -> Nest:
        shape = self.output.shape
        return nest([*(broadcast_to(view, shape) for view in self.inputs), self.output])

    def body(self, f: Function, args: dict[str, Value]) -> None:
        extents = self.extents(f, args)
        steps = [step if isinstance(step, int) else amount(f, extents, step) for step in self.nest.steps]
        bases = [args[f"in{i}"] for i in range(len(self.inputs))]
        for run in self.nest.runs(f, extents, f["low"], f["high"]):
            operands = [
                reader(f, base, offset, self._type(view.dtype), step)
                for base, offset, view, step in zip(bases, run.offsets, self.inputs, steps, strict=False)
            ]
            size = STORED[self.output.dtype].nbytes
            out = Writer(f, f.at(args["out"], run.offsets[-1] * size), steps[-1])
            if are_vectors(*self.nest.steps):
                for i, count in in_vectors(f, run.count):
                    out.vector(self._result(f, [operand.vector(i, count) for operand in operands]), i, count)
            else:
                for i, _ in f.range(0, run.count):
                    out.one(self._result(f, [operand.one(i) for operand in operands]), i)

    def _type(self, dtype: DType) -> Type:
        return (BITS if isinstance(self.op, elementwise.Where) else STORED)[dtype]

    def _result(self, f: Function, stored: Sequence[Value]) -> Value:
        """What is stored, from what the operands' elements are stored as."""
        values = [
            value.ne(0) if view.dtype is DType.BOOL else value
            for value, view in zip(stored, self.inputs, strict=True)
        ]
        if isinstance(self.op, elementwise.Cast):
            return cast(f, values[0], self.inputs[0].dtype, self.op.dtype)
        if isinstance(self.op, elementwise.Where) and self.output.dtype is DType.BOOL:
            values[1:] = stored[1:]
        result = COMPUTED[type(self.op)](f, *values)
        return result.cast("zext", I8) if result.type.element == "i1" else result


def cast(f: Function, value: Value, source: DType, target: DType) -> Value:
    """The stored form in `target` of a value that is an i1 for a bool, bits for a half float.

    To floats it rounds to nearest even, to int64 toward zero. What lies beyond int64's ends becomes them, and
    NaN 0. True is what isn't 0.
    """
    lanes = value.type.lanes
    if source is target:
        return value.cast("zext", I8) if source is DType.BOOL else value
    if source is DType.BOOL:
        one = {DType.F32: f.const(F32.x(lanes), 1.0), DType.F16: f.const(I16.x(lanes), 0x3C00)}
        if target is DType.I64:
            return value.cast("zext", I64)
        return value.select(one[target], 0)
    if target is DType.BOOL:
        bits = value.cast("bitcast", BITS[source].x(lanes))
        if source.is_float:
            bits = bits << 1  # without the sign: -0 is 0
        return bits.ne(0).cast("zext", I8)
    if source is DType.F16:
        value = widen(f, value)
    if target is DType.I64:
        suffix = f"{I64.x(lanes).suffix}.{value.type.suffix}"
        return f.intrinsic("fptosi.sat", value, returns=I64.x(lanes), suffix=suffix)
    if source is DType.I64:
        value = value.cast("sitofp", F32)
    return narrow(f, value) if target is DType.F16 else value
