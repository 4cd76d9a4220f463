"""Attention over KV slabs in one pass: spans of fixed positions, merged from left to right."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32V, I32, I64
from ostinato.devices.cpu.kernels.attention_merge import (
    empty_record,
    factor_bytes,
    merge_record,
    write_result,
)
from ostinato.devices.cpu.kernels.attention_shape import LOG2_E, SPAN, Attended, SpanShape, spans_of
from ostinato.devices.cpu.kernels.attention_span import SpanMemory, attend_span
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.kernels.rope import rope_to
from ostinato.devices.cpu.kernels.slab_write import outside, report, write_row
from ostinato.devices.cpu.slabs import BLOCK, SlabGeometry
from ostinato.ir.encoding import Encoding


@dataclass(frozen=True)
class Attend(Kernel):
    """`ir.ops.attention.Attention` over a K and a V slab of the KV type `kv`.

    q `[rows, heads, k_dim]`, out `[rows, heads · v_dim]`, mask `[rows, capacity]` where `masked`. `start` and
    `length` are cells. With `q_rope` the first `rot` elements of each head of q are rotated first, by cos and
    sin `[rows, rot/2]`.
    """

    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    capacity: int
    kv: Encoding
    scale: float
    window: int | None = None
    masked: bool = False
    rot: int = 0
    q_rope: bool = False

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def k(self) -> SlabGeometry:
        return SlabGeometry(self.kv_heads, self.capacity, self.k_dim, self.kv, "k")

    @property
    def v(self) -> SlabGeometry:
        return SlabGeometry(self.kv_heads, self.capacity, self.v_dim, self.kv, "v")

    @property
    @abstractmethod
    def rows_per_item(self) -> int:
        """Rows whose attention over one KV head is one item."""

    @property
    def shape(self) -> SpanShape:
        windowed = self.window is not None
        return SpanShape(self.rows_per_item, self.group, self.k, self.v, windowed, self.masked)

    @property
    def scratch_bytes(self) -> int:
        return sum(self._scratch_sizes)

    @property
    def _scratch_sizes(self) -> tuple[int, ...]:
        """Query vectors, weights, a V row of zeros, a span's record, the merged record, factors."""
        shape = self.shape
        zeros = -(-shape.v.width * shape.v.element // 64) * 64 if self.masked else 0
        records = (shape.record_bytes, shape.record_bytes, factor_bytes(shape))
        return (shape.vectors * shape.q_pitch, shape.vectors * shape.weights_pitch, zeros, *records)

    def _scratch(self, f: Function) -> list[Value]:
        sizes = self._scratch_sizes
        places = [f.at(f["scratch"], sum(sizes[:i])) for i in range(len(sizes))]
        if self.masked:
            for at in range(0, sizes[2], 64):
                f.store(f.zero(F32V), places[2], at)
        return places

    def _attended(self, f: Function, position: Value, length: Value, mask: Value | None) -> Attended:
        """What the row at `position` attends."""
        low = f.const(I64, 0)
        if self.window is not None:
            low = (position - (self.window - 1)).max(0).min(length)
        return Attended(low, length.min(position + 1).max(low), mask)

    def _query(self, f: Function, args: dict[str, Value], row: Value, x: Value, out: Value) -> None:
        """The heads of a row that share a KV head, rotated and scaled, to powers of two."""
        rot, cos, sin = 0, x, x  # read by a rotation only
        if self.q_rope:
            rot = self.rot
            cos, sin = (f.at(args[name], row * (rot // 2 * 4)) for name in ("q_cos", "q_sin"))
        for g, _ in f.range(0, self.group):
            source, target = f.at(x, g * (self.k_dim * 4)), f.at(out, g * self.shape.q_pitch)
            rope_to(f, self.k_dim, rot, source, cos, sin, target, self.scale * LOG2_E)


@dataclass(frozen=True)
class AttendOne(Attend):
    """Attention of one row, with its rotation and its slab writes: one step without a barrier inside.

    An item is a span of a KV head, kv_head · spans + span, where spans = ceil(length / SPAN). With `write`,
    the item whose span holds position `start` first puts the row's K `k_new` `[kv_heads, k_dim]`, rotated
    where `k_rope`, and V `v_new` `[kv_heads, v_dim]` into the slabs, unless the cell `count` is 0, and reads
    them back rounded like all others. The last item of a KV head to arrive at its counter, i32 `[kv_heads]`,
    zero before and after, merges the head's `partials`. If the position or the length lies outside the slabs,
    or more than the one row is to be written, nothing is touched.
    """

    write: bool = False
    k_rope: bool = False

    @property
    def rows_per_item(self) -> int:
        return 1

    @property
    def params(self) -> tuple[str, ...]:
        new: tuple[str, ...] = ("k_new", "v_new", "count") if self.write else ()
        new += ("k_cos", "k_sin") if self.write and self.k_rope else ()
        tables = ("q_cos", "q_sin") if self.q_rope else ()
        mask = ("mask",) if self.masked else ()
        slabs = ("k_slab", "v_slab", "start", "length", "partials", "counters", "out")
        return ("q", *tables, *new, *slabs, *mask, "error", "code_n")

    @property
    def partial_bytes(self) -> int:
        """Of `partials`: a record for each span that the slabs have room for, of each KV head."""
        return self.kv_heads * -(-self.capacity // SPAN) * self.shape.record_bytes

    @property
    def counter_bytes(self) -> int:
        return 4 * self.kv_heads

    @property
    def scratch_bytes(self) -> int:
        return super().scratch_bytes + self.shape.q_pitch  # a rotated row of K

    def body(self, f: Function, args: dict[str, Value]) -> None:
        start, length = f.load(I64, args["start"]), f.load(I64, args["length"])
        refused = self._refused(f, start, length, args)
        spans = (length + (SPAN - 1)) // SPAN
        q, weights, zeros, _, state, factors = self._scratch(f)
        rotated = f.at(f["scratch"], super().scratch_bytes)
        shape = self.shape
        row = self._attended(f, start, length, args.get("mask"))
        written = (start // SPAN).min(spans - 1)
        for item, _ in f.range(f["low"], refused.select(f["low"], f["high"])):
            head = item // spans
            span = item - head * spans
            first = span * SPAN
            if self.write:
                for _ in f.when(span.eq(written) & f.load(I64, args["count"]).ne(0)):
                    self._write(f, args, head, start, rotated)
            part = row.within(f, first)
            for _ in f.when(part.low.lt(part.high)):
                x = f.at(args["q"], head * (self.group * self.k_dim * 4))
                self._query(f, args, f.const(I64, 0), x, q)
                k = f.at(args["k_slab"], head * self.k.head_stride)
                v = f.at(args["v_slab"], head * self.v.head_stride)
                ahead = self._k_of(f, args, (item + 1).min(f["high"] - 1), spans)
                record = f.at(args["partials"], item * shape.record_bytes)
                memory = SpanMemory(q, weights, zeros, k, v, record, ahead)
                attend_span(f, shape, memory, first, [row])
            arrived = f.atomic_add(args["counters"], head * 4, 1)
            for _ in f.when(arrived.eq(spans.cast("trunc", I32) - 1)):
                f.atomic_store(f.const(I32, 0), args["counters"], head * 4)
                empty_record(f, shape, state)
                base = f.at(args["partials"], head * spans * shape.record_bytes)
                for done, _ in f.range(*spans_of(row)):
                    merge_record(f, shape, state, f.at(base, done * shape.record_bytes), factors)
                write_result(f, shape, state, 0, f.at(args["out"], head * (self.group * self.v_dim * 4)))

    def _k_of(self, f: Function, args: dict[str, Value], item: Value, spans: Value) -> Value:
        """Where an item's K starts."""
        head = item // spans
        span = item - head * spans
        return f.at(args["k_slab"], head * self.k.head_stride + span * (SPAN // BLOCK * self.k.block_bytes))

    def _refused(self, f: Function, start: Value, length: Value, args: dict[str, Value]) -> Value:
        """Whether the row or what it attends lies outside the slabs, which the error record then says."""
        refused = outside(f, f.const(I64, 0), length, self.capacity)
        index = length - 1
        if self.write:
            beyond, count = outside(f, start, f.const(I64, 1), self.capacity), f.load(I64, args["count"])
            index = beyond.select(start, index)
            several = count.below(2).eq(0)
            report(f, several, args, count - 1, 1)
            report(f, refused | beyond, args, index, self.capacity)
            return refused | beyond | several
        report(f, refused, args, index, self.capacity)
        return refused

    def _write(self, f: Function, args: dict[str, Value], head: Value, start: Value, rotated: Value) -> None:
        row = f.at(args["k_new"], head * (self.k_dim * 4))
        if self.k_rope:
            rope_to(f, self.k_dim, self.rot, row, args["k_cos"], args["k_sin"], rotated)
            row = rotated
        write_row(f, self.k, args["k_slab"], head, start, row)
        write_row(f, self.v, args["v_slab"], head, start, f.at(args["v_new"], head * (self.v_dim * 4)))


@dataclass(frozen=True)
class AttendMany(Attend):
    """Attention of any number of rows over slabs that hold their K and V already.

    `rows` is a cell; `q_stride` the elements from one row of q to the next. An item is a few rows and one KV
    head: turn · kv_heads + kv_head, for ceil(rows / `rows_per_item`) tiles of rows. A row's result has the
    bits that `AttendOne` gives it. If the length lies outside the slabs, nothing is touched.
    """

    q_stride: int = 0

    @property
    def rows_per_item(self) -> int:
        """Rows that share each load of K and V. One where a mask is: it takes other cells from each row."""
        return 1 if self.masked else max(1, min(4, 6 // self.group))

    @property
    def shared(self) -> bool:
        return True

    @property
    def params(self) -> tuple[str, ...]:
        tables = ("q_cos", "q_sin") if self.q_rope else ()
        mask = ("mask",) if self.masked else ()
        return ("q", *tables, "k_slab", "v_slab", "start", "length", "rows", "out", *mask, "error", "code_n")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        start, length, count = (f.load(I64, args[name]) for name in ("start", "length", "rows"))
        refused = outside(f, f.const(I64, 0), length, self.capacity)
        report(f, refused, args, length - 1, self.capacity)
        q, weights, zeros, record, state, factors = self._scratch(f)
        shape = self.shape
        for item, _ in f.range(f["low"], refused.select(f["low"], f["high"])):
            turn = item // self.kv_heads
            head = item - turn * self.kv_heads
            # Later rows attend more. First and last tiles take turns, so that threads' shares are alike.
            back = turn >> 1
            tile = (turn & 1).ne(0).select((count + (shape.rows - 1)) // shape.rows - 1 - back, back)
            # The last tile does its last row again, to the same place, where it has too few.
            numbers = [(tile * shape.rows + r).min(count - 1) for r in range(shape.rows)]
            rows = []
            for r, number in enumerate(numbers):
                x = f.at(args["q"], number * (self.q_stride * 4) + head * (self.group * self.k_dim * 4))
                self._query(f, args, number, x, f.at(q, r * self.group * shape.q_pitch))
                mask = f.at(args["mask"], number * (self.capacity * 4)) if self.masked else None
                rows.append(self._attended(f, start + number, length, mask))
            k = f.at(args["k_slab"], head * self.k.head_stride)
            v = f.at(args["v_slab"], head * self.v.head_stride)
            empty_record(f, shape, state)
            for span, _ in f.range(spans_of(rows[0])[0], spans_of(rows[-1])[1]):
                memory = SpanMemory(q, weights, zeros, k, v, record)
                attend_span(f, shape, memory, span * SPAN, rows)
                merge_record(f, shape, state, record, factors)
            for r, number in enumerate(numbers):
                out = number * (self.heads * self.v_dim * 4) + head * (self.group * self.v_dim * 4)
                write_result(f, shape, state, r, f.at(args["out"], out))
