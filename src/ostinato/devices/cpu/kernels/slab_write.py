"""Rows into KV slabs, rounded to what the slab stores."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32V, I64, LANES
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.kernels.kv_q8_0 import quantize_block
from ostinato.devices.cpu.kernels.rope import rope_to
from ostinato.devices.cpu.kernels.rounding import narrow
from ostinato.devices.cpu.slabs import BLOCK, SlabGeometry
from ostinato.ir.encoding import F16


def write_row(f: Function, slab: SlabGeometry, base: Value, head: Value, position: Value, row: Value) -> None:
    """The float32 `row` `[dim]` as the slab's row at `position`, which must lie inside the capacity."""
    base = f.at(base, head * slab.head_stride)
    if slab.quantized:
        scales = f.at(base, (position >> 5) * slab.scale_bytes + (position & (BLOCK - 1)) * 2)
        scales = f.at(scales, slab.scales_at)
    if slab.role == "v":
        base = f.at(base, position * (slab.width * slab.element))
    else:
        base = f.at(base, (position >> 5) * slab.block_bytes + (position & (BLOCK - 1)) * slab.element)
    if slab.quantized:
        _write_quantized(f, slab, base, scales, row)
        return
    whole = slab.dim // LANES * LANES
    for d, _ in f.range(0, whole, LANES):
        _write_part(f, slab, base, d, _stored(f, slab, f.load(F32V, row, d * 4)), LANES)
    if rest := slab.dim - whole:
        last = f.load_part(F32V, row, whole * 4, rest)
        _write_part(f, slab, base, f.const(I64, whole), _stored(f, slab, last), rest)


def _stored(f: Function, slab: SlabGeometry, values: Value) -> Value:
    return narrow(f, values) if slab.kv == F16 else values


def _write_quantized(f: Function, slab: SlabGeometry, base: Value, scales: Value, row: Value) -> None:
    """The row in blocks; the scale of block b goes to `scales` + b · 64."""
    whole = slab.dim // BLOCK

    def write(b: Value, elements: int) -> None:
        d = b * BLOCK
        counts = [min(LANES, elements), max(0, elements - LANES)]
        values = [f.load_part(F32V, row, d * 4 + 4 * LANES * i, n) for i, n in enumerate(counts)]
        q, scale = quantize_block(f, values)
        for i, (part, count) in enumerate(zip(q, counts, strict=True)):
            _write_part(f, slab, base, d + LANES * i, part, count)
        f.store(f.lane(scale, 0), scales, b * (2 * BLOCK))

    for b, _ in f.range(0, whole):
        write(b, BLOCK)
    if rest := slab.dim - whole * BLOCK:
        write(f.const(I64, whole), rest)


def _write_part(f: Function, slab: SlabGeometry, base: Value, d: Value, stored: Value, count: int) -> None:
    """Elements d … d + count - 1 of a row that starts at `base`."""
    if slab.role == "v":
        f.store(stored, base, d * slab.element)  # zeros where the row is padded
        return
    for lane in range(count):
        stride = BLOCK * slab.element
        f.store(f.lane(stored, lane), base, d * stride + lane * stride)


def report(f: Function, refused: Value, args: dict[str, Value], index: Value, size: Value | int) -> None:
    """Where `refused` holds, an entry in the error record; the caller touches no memory then."""
    size = f.const(I64, size) if isinstance(size, int) else size
    for _ in f.when(refused):
        for at, value in enumerate((args["code_n"], index, size)):
            f.store(value, args["error"], 8 * at)


def outside(f: Function, start: Value, count: Value, capacity: int) -> Value:
    """Whether any of start … start + count - 1 is no position of a slab, or one of the two is negative."""
    inside = start.below(capacity + 1) & count.below(capacity + 1)
    return inside.eq(0) | (start + count).gt(capacity)


@dataclass(frozen=True)
class SlabWrite(Kernel):
    """rows `[rows, kv_heads, dim]` to the positions start … start + count - 1 of a slab.

    With `rot`, the first `rot` elements of each row are rotated first, by cos and sin `[rows, rot/2]`. Rows
    from `count` on are never written; if any position lies outside the slab, or there are fewer rows (the
    cell `row_count`), nothing is. `row_stride` is in elements. An item is kv_head · rows + row: rows of K
    share cache lines with their neighbours, and mostly stay on one thread so.
    """

    slab: SlabGeometry
    row_stride: int
    rot: int = 0

    @property
    def params(self) -> tuple[str, ...]:
        tables = ("cos", "sin") if self.rot else ()
        return ("rows", *tables, "slab", "start", "count", "row_count", "error", "code_n")

    @property
    def scratch_bytes(self) -> int:
        return 4 * self.slab.width if self.rot else 0

    def body(self, f: Function, args: dict[str, Value]) -> None:
        slab = self.slab
        start, count, rows = (f.load(I64, args[name]) for name in ("start", "count", "row_count"))
        refused, few = outside(f, start, count, slab.capacity), count.gt(rows)
        last = start + count - 1
        report(f, few, args, count - 1, rows)
        report(f, refused, args, start.lt(0).select(start, last), slab.capacity)
        refused = refused | few
        end = refused.select(f["low"], f["high"])
        for item, _ in f.range(f["low"], end):
            head = item // rows
            row = item - head * rows
            for _ in f.when(row.lt(count)):
                self._write(f, args, head, row, start + row)

    def _write(self, f: Function, args: dict[str, Value], head: Value, row: Value, position: Value) -> None:
        slab = self.slab
        source = f.at(args["rows"], row * (self.row_stride * 4) + head * (slab.dim * 4))
        if self.rot:
            cos, sin = (f.at(args[name], row * (self.rot // 2 * 4)) for name in ("cos", "sin"))
            rope_to(f, slab.dim, self.rot, source, cos, sin, f["scratch"])
            source = f["scratch"]
        write_row(f, slab, args["slab"], head, position, source)
