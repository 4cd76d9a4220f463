"""Attention and KV writes: of one row in one step, of several rows the writes first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ostinato.devices.cpu.kernels.attention import AttendMany, AttendOne
from ostinato.devices.cpu.kernels.attention_shape import SPAN
from ostinato.devices.cpu.kernels.rope import RopeRows
from ostinato.devices.cpu.kernels.slab_write import SlabWrite
from ostinato.devices.cpu.lowering import Located, Lower, Lowering
from ostinato.devices.cpu.slabs import SlabGeometry, slab_kind
from ostinato.devices.cpu.tape import Items, Place
from ostinato.devices.cpu.views import contiguous
from ostinato.ir.encoding import Encoding
from ostinato.ir.graph import Node
from ostinato.ir.op import Op
from ostinato.ir.ops.attention import Attention
from ostinato.ir.ops.region import Region
from ostinato.ir.ops.slab import WriteSlice, WriteSliceDevice
from ostinato.ir.shape import Length, NodeId, Operand
from ostinato.plan.regions.attend import AttendParts, attend_parts

Args = dict[str, Place | int]


@dataclass(frozen=True, slots=True)
class _Heads:
    """`[rows, heads, dim]` rows whose heads lie one after another."""

    place: Place
    stride: int
    """Elements from one row to the next."""


@dataclass(frozen=True, slots=True)
class _Tables:
    """Cosines and sines, `[rows, rot/2]` each."""

    rot: int
    cos: Place
    sin: Place


@dataclass(frozen=True, slots=True)
class _New:
    """The K and V of one row, and the i64 that says how many rows are written: 1, or none."""

    k: Located
    v: Located
    k_tables: _Tables | None
    count: Place


def attend(low: Lowering, node: Node) -> bool:
    """The pattern "attend"."""
    assert isinstance(node.op, Region)
    parts = attend_parts(node.op)
    inputs = node.inputs
    q_tables = _tables(low, inputs, parts.q_rope)
    k_tables = _tables(low, inputs, parts.k_rope)
    k, v = low[inputs[parts.k]], low[inputs[parts.v]]
    if not low.is_one(node.shape[0]):
        span = (_length(low, inputs, parts.start), _length(low, inputs, parts.count))
        _write(low, inputs[parts.k_slab], k, span, k_tables)
        _write(low, inputs[parts.v_slab], v, span, None)
        _attend(low, node, parts, q_tables)
        return True
    count = _length(low, inputs, parts.count)
    if q_tables and k_tables and q_tables.rot != k_tables.rot:  # the kernel knows one width
        k, k_tables = _rotated(low, k, k_tables), None
    _attend(low, node, parts, q_tables, _New(k, v, k_tables, count))
    return True


def _attention(low: Lowering, node: Node) -> bool:
    """An attention that no region took in."""
    op = node.op
    assert isinstance(op, Attention)
    parts = AttendParts(
        op, 0, -1, -1, 1, 2, None, None, op.start, 1, op.length, len(node.inputs) - 1 if op.masked else None
    )
    _attend(low, node, parts, None)
    return True


def _attend(
    low: Lowering,
    node: Node,
    parts: AttendParts,
    q_tables: _Tables | None,
    new: _New | None = None,
) -> None:
    """The attention of rows whose K and V are in the slabs, or of one whose `new` K and V it writes."""
    inputs, op, one = node.inputs, parts.attention, low.is_one(node.shape[0])
    k_slab, v_slab = low[inputs[parts.k_slab]], low[inputs[parts.v_slab]]
    q_value = low[inputs[parts.q]]
    heads, k_dim = (low.bound(dim) for dim in q_value.view.shape[1:])
    kv_heads, capacity, v_dim = (low.bound(dim) for dim in v_slab.view.shape[1:])
    q = _heads(low, q_value)
    k_tables = None if new is None else new.k_tables
    tables = q_tables or k_tables
    rot = tables.rot if tables else 0
    kv, _ = _kind(low, inputs[parts.k_slab])
    dims = (heads, kv_heads, k_dim, v_dim, capacity, kv)
    geometry = (*dims, op.scale, op.window, op.masked, rot, q_tables is not None)
    length = _length(low, inputs, parts.length)
    args: Args = {
        "q": q.place,
        "k_slab": k_slab.place,
        "v_slab": v_slab.place,
        "start": _length(low, inputs, parts.start),
        "length": length,
    }
    if q_tables:
        args |= {"q_cos": q_tables.cos, "q_sin": q_tables.sin}
    if parts.mask is not None:
        args["mask"] = low.at(low.compact(low[inputs[parts.mask]]))
    args["out"] = low.target(node).place
    if not one:
        many = AttendMany(*geometry, q_stride=q.stride)
        args["rows"] = low.cell(node.shape[0])
        low.emit(many, args, Items(kv_heads, low.cell(node.shape[0]), many.rows_per_item), slabs=True)
        return
    kernel = AttendOne(*geometry, write=new is not None, k_rope=k_tables is not None)
    if new is not None:
        args |= {"k_new": _heads(low, new.k).place, "v_new": _heads(low, new.v).place, "count": new.count}
    if k_tables:
        args |= {"k_cos": k_tables.cos, "k_sin": k_tables.sin}
    args |= {"partials": low.temporary(kernel.partial_bytes), "counters": low.counters(kernel.counter_bytes)}
    writes = ("out", "partials", "counters", "k_slab", "v_slab")
    low.emit(kernel, args, Items(kv_heads, length, SPAN), writes, slabs=True)


def _slab_write(low: Lowering, node: Node) -> bool:
    """A write that no region took in; its value is its slab."""
    slab, rows, *span = node.inputs
    if isinstance(node.op, WriteSlice):
        places = low.cell(node.op.start), low.cell(node.op.count)
    else:
        places = low.at(low[span[0]]), low.at(low[span[1]])
    _write(low, slab, low[rows], places, None)
    low.same_memory(node.id, slab)
    return True


ATTENTION: Mapping[type[Op], Lower] = {
    Attention: _attention,
    WriteSlice: _slab_write,
    WriteSliceDevice: _slab_write,
}


def _write(
    low: Lowering,
    slab: NodeId,
    rows: Located,
    span: tuple[Place, Place],
    tables: _Tables | None,
) -> None:
    target = low[slab]
    geometry = SlabGeometry.of([low.bound(dim) for dim in target.view.shape], *_kind(low, slab))
    source = _heads(low, rows)
    kernel = SlabWrite(geometry, source.stride, tables.rot if tables else 0)
    args: Args = {"rows": source.place, "slab": target.place, "start": span[0], "count": span[1]}
    args["row_count"] = low.cell(rows.view.shape[0])
    if tables:
        args |= {"cos": tables.cos, "sin": tables.sin}
    low.emit(kernel, args, low.items(rows.view.shape[0], geometry.kv_heads), ("slab",), slabs=True)


def _kind(low: Lowering, slab: NodeId) -> tuple[Encoding, str]:
    """The KV type and the role of a slab, whatever writes it has been through."""
    kind = slab_kind(low.slab_encoding(slab))
    assert kind is not None, "only slabs are written and attended"
    return kind


def _length(low: Lowering, inputs: tuple[NodeId, ...], length: Length) -> Place:
    """The i64 that holds a position or an extent."""
    return low.at(low[inputs[length.index]]) if isinstance(length, Operand) else low.cell(length)


def _heads(low: Lowering, value: Located) -> _Heads:
    """Rows as the kernels take them, copied where their heads lie otherwise."""
    view = value.view
    heads, dim = (low.bound(d) for d in view.shape[1:])
    row, head, element = view.strides
    packed = (element == 1 or dim == 1) and (head == dim or heads == 1) and isinstance(view.offset, int)
    if packed and low.is_one(view.shape[0]):
        return _Heads(low.at(value), heads * dim)
    if packed and isinstance(row, int):
        return _Heads(low.at(value), row)
    return _Heads(low.at(low.copied(value)), heads * dim)


def _tables(low: Lowering, inputs: tuple[NodeId, ...], rope: tuple[int, int] | None) -> _Tables | None:
    if rope is None:
        return None
    cos, sin = (low.compact(low[inputs[i]]) for i in rope)
    return _Tables(2 * low.bound(cos.view.shape[1]), low.at(cos), low.at(sin))


def _rotated(low: Lowering, value: Located, tables: _Tables) -> Located:
    heads, dim = (low.bound(d) for d in value.view.shape[1:])
    source = _heads(low, value)
    shape, dtype = value.view.shape, value.view.dtype
    room = low.temporary(low.count(shape) * dtype.nbytes)
    kernel = RopeRows(heads, dim, tables.rot, source.stride, tables.rot // 2)
    args: Args = {"x": source.place, "cos": tables.cos, "sin": tables.sin, "out": room}
    low.emit(kernel, args, low.items(shape[0]))
    return Located(room, contiguous(shape, dtype))
