"""Rotary position embedding: `ir.ops.nn.Rope`, every product and sum rounded as its definition has it."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32V, LANES
from ostinato.devices.cpu.kernels.kernel import Kernel


def rope_to(
    f: Function,
    head_dim: int,
    rot: int,
    x: Value,
    cos: Value,
    sin: Value,
    out: Value,
    scale: float = 1.0,
) -> None:
    """The float32 head at `x`, its first `rot` elements rotated, times `scale`, to `out`, which may be `x`.

    Pairs are (i, i + rot/2); cos and sin are [rot/2]. Nothing past the head or the tables is touched.
    """
    half = rot // 2

    def put(value: Value, first: int, count: int) -> None:
        f.store_part(value if scale == 1.0 else value * scale, out, 4 * first, count)

    for first in range(0, half, LANES):
        count = min(LANES, half - first)
        a = f.load_part(F32V, x, 4 * first, count)
        b = f.load_part(F32V, x, 4 * (half + first), count)
        c, s = f.load_part(F32V, cos, 4 * first, count), f.load_part(F32V, sin, 4 * first, count)
        put(a * c - b * s, first, count)
        put(b * c + a * s, half + first, count)
    for first in range(rot, head_dim, LANES):
        count = min(LANES, head_dim - first)
        put(f.load_part(F32V, x, 4 * first, count), first, count)


@dataclass(frozen=True)
class RopeRows(Kernel):
    """x [rows, heads, head_dim], rows `x_stride` elements apart, cos and sin [rows, rot/2], rows
    `table_stride` apart → out [rows, heads, head_dim]. An item is a row."""

    heads: int
    head_dim: int
    rot: int
    x_stride: int
    table_stride: int

    @property
    def params(self) -> tuple[str, ...]:
        return ("x", "cos", "sin", "out")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        head_bytes = 4 * self.head_dim
        for i, _ in f.range(f["low"], f["high"]):
            cos, sin = (f.at(args[name], i * (4 * self.table_stride)) for name in ("cos", "sin"))
            x, out = (
                f.at(args["x"], i * (4 * self.x_stride)),
                f.at(args["out"], i * (self.heads * head_bytes)),
            )
            for h, _ in f.range(0, self.heads):
                offset = h * head_bytes
                rope_to(f, self.head_dim, self.rot, f.at(x, offset), cos, sin, f.at(out, offset))
