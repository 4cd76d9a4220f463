"""Activations of whole rows, with the arithmetic that products use on their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32V, LANES
from ostinato.devices.cpu.kernels import math
from ostinato.devices.cpu.kernels.kernel import Kernel

Name = Literal["gelu_tanh", "silu", "swiglu"]


@dataclass(frozen=True)
class Activation(Kernel):
    """`ir.ops.nn`'s GeluTanh, Silu, or SwiGlu of x and up: rows of `k` elements, `x_stride` and `up_stride`
    elements apart → out, one row after another. An item is a row; out may be an operand of equal stride."""

    name: Name
    k: int
    x_stride: int
    up_stride: int = 0

    @property
    def params(self) -> tuple[str, ...]:
        return ("x", "up", "out") if self.name == "swiglu" else ("x", "out")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        full, tail = divmod(self.k, LANES)
        for row, _ in f.range(f["low"], f["high"]):
            x, out = f.at(args["x"], row * (4 * self.x_stride)), f.at(args["out"], row * (4 * self.k))
            up = f.at(args["up"], row * (4 * self.up_stride)) if self.name == "swiglu" else None
            for i, _ in f.range(0, 4 * LANES * full, 4 * LANES):
                self._vector(f, x, up, out, i, LANES)
            self._vector(f, x, up, out, 4 * LANES * full, tail)

    def _vector(
        self, f: Function, x: Value, up: Value | None, out: Value, offset: Value | int, count: int
    ) -> None:
        if count == 0:
            return
        value = f.load_part(F32V, x, offset, count)
        if self.name == "gelu_tanh":
            value = math.gelu_tanh(f, value)
        else:
            value = math.silu(f, value)
        if up is not None:
            value = value * f.load_part(F32V, up, offset, count)
        f.store_part(value, out, offset, count)
