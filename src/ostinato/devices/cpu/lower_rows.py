"""Ops that work row by row: norms, quantisation, rotary embedding, activations, embedding, argmax."""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.devices.cpu.kernels.activation import Activation, Name
from ostinato.devices.cpu.kernels.argmax import ArgMaxRows
from ostinato.devices.cpu.kernels.embed import Embed
from ostinato.devices.cpu.kernels.rope import RopeRows
from ostinato.devices.cpu.kernels.rows import BRAIN, INT8, PrepareRows, RowSpec
from ostinato.devices.cpu.lowering import LINE, Lower, Lowering
from ostinato.devices.cpu.tape import Place
from ostinato.ir.graph import Node
from ostinato.ir.op import Op
from ostinato.ir.ops.nn import Embedding, GeluTanh, LayerNorm, RmsNorm, Rope, Silu, SwiGlu
from ostinato.ir.ops.quantize import QuantizeRows, RoundBF16, Rounding
from ostinato.ir.ops.reduce import ArgMax

_ACTIVATIONS: Mapping[type[Op], Name] = {GeluTanh: "gelu_tanh", Silu: "silu", SwiGlu: "swiglu"}


def _norm(low: Lowering, node: Node) -> bool:
    op = node.op
    assert isinstance(op, RmsNorm | LayerNorm)
    if len(node.shape) != 2:
        return False
    spec = RowSpec(low.bound(node.shape[1]), "rms" if isinstance(op, RmsNorm) else "layer", op.eps)
    x, stride = low.rows(low[node.inputs[0]])
    kernel = PrepareRows(spec, x_stride=stride)
    args: dict[str, Place | int] = {"x": low.at(x), "out": low.target(node).place}
    for name, i in zip(("norm_weight", "norm_bias"), node.inputs[1:], strict=False):
        args[name] = low.at(low.compact(low[i]))
    low.emit(kernel, args, low.items(node.shape[0]))
    return True


def _round(low: Lowering, node: Node) -> bool:
    assert isinstance(node.op, Rounding)
    if len(node.shape) != 2 or node.op not in (INT8, BRAIN):
        return False
    x, stride = low.rows(low[node.inputs[0]])
    spec = RowSpec(low.bound(node.shape[1]), rounding=node.op)
    kernel = PrepareRows(spec, x_stride=stride, dequantized=True)
    low.emit(kernel, {"x": low.at(x), "out": low.target(node).place}, low.items(node.shape[0]))
    return True


def _rope(low: Lowering, node: Node) -> bool:
    rows, heads, head_dim = node.shape
    x, cos, sin = (low.compact(low[i]) for i in node.inputs)
    width = low.bound(heads) * low.bound(head_dim)
    half = low.bound(cos.view.shape[1])
    kernel = RopeRows(low.bound(heads), low.bound(head_dim), 2 * half, x_stride=width, table_stride=half)
    args = {"x": low.at(x), "cos": low.at(cos), "sin": low.at(sin), "out": low.target(node).place}
    low.emit(kernel, args, low.items(rows))
    return True


def _activation(low: Lowering, node: Node) -> bool:
    if len(node.shape) != 2:
        return False
    name = _ACTIVATIONS[type(node.op)]
    args: dict[str, Place | int] = {"out": low.target(node).place}
    strides = []
    for label, i in zip(("x", "up"), node.inputs, strict=False):
        value, stride = low.rows(low[i])
        args[label] = low.at(value)
        strides.append(stride)
    kernel = Activation(name, low.bound(node.shape[1]), *strides)
    low.emit(kernel, args, low.items(node.shape[0]))
    return True


def _embedding(low: Lowering, node: Node) -> bool:
    ids, table = node.inputs
    form = low.form(table)
    if form is None:
        return False
    vocab, k = (low.bound(dim) for dim in low[table].view.shape)
    args = {"ids": low.at(low.compact(low[ids])), "w": low[table].place, "out": low.target(node).place}
    low.emit(Embed(form.name, vocab, k), args, low.items(node.shape[0]))
    return True


def _argmax(low: Lowering, node: Node) -> bool:
    x = low[node.inputs[0]]
    if len(x.view.shape) != 2:
        return False
    rows, n = x.view.shape
    kernel = ArgMaxRows(low.bound(n))
    args = {
        "x": low.at(low.compact(x)),
        "out": low.target(node).place,
        "partials": low.temporary(low.bound(rows) * kernel.partial_bytes),
        "counters": low.counters(low.bound(rows) * LINE),
    }
    writes = ("out", "partials", "counters")
    low.emit(kernel, args, low.items(rows, kernel.chunks), writes)
    return True


ROWS: Mapping[type[Op], Lower] = {
    RmsNorm: _norm,
    LayerNorm: _norm,
    QuantizeRows: _round,
    RoundBF16: _round,
    Rope: _rope,
    GeluTanh: _activation,
    Silu: _activation,
    SwiGlu: _activation,
    Embedding: _embedding,
    ArgMax: _argmax,
}
