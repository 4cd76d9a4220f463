"""Realising small graphs in tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from ostinato.device.contract import slab_encoding
from ostinato.device.storage import Part, Storage
from ostinato.devices.cpu.memory import Buffer
from ostinato.ir import ConstRole, DType, Graph, Location, SymEnv, Tensor
from ostinato.ir.encoding import Encoding, plain
from ostinato.ir.ops.const import Const
from ostinato.runtime.context import Bindings, InferenceContext

OF_NUMPY = {np.dtype(dtype.value): dtype for dtype in DType}


def const(graph: Graph, value: np.ndarray, *shape: Any) -> tuple[Tensor, np.ndarray]:
    """A data Const for `value`, with a symbolic shape if one is given."""
    return graph.const("x", ConstRole.DATA, shape or value.shape, OF_NUMPY[value.dtype]), value


def storage(array: np.ndarray, location: str = "reference:0") -> Storage:
    """A reference storage over `array`'s own memory."""
    flat = array.reshape(-1)
    dtype = OF_NUMPY[array.dtype]
    part = Part("values", flat.nbytes, flat)
    return Storage(Location.parse(location), dtype, plain(dtype), (part,))


def slab(context: InferenceContext, graph: Graph, array: np.ndarray, role: str) -> Tensor:
    """A slab Const for `array` `[1, kv_heads, capacity, dim]`, stored as the context's device stores its K
    ("k") or V ("v")."""
    dtype = OF_NUMPY[array.dtype]
    encoding = slab_encoding(context.devices.device(context.location), plain(dtype), role)
    return graph.const(role, ConstRole.SLAB, array.shape, dtype, encoding)


def run(
    context: InferenceContext,
    result: Tensor,
    *data: tuple[Tensor, np.ndarray],
    slabs: dict[Tensor, np.ndarray] | None = None,
    env: dict[Any, int] | None = None,
) -> np.ndarray:
    """The value of `result` on the context's device. Slabs change as the device changes them."""
    device = context.devices.device(context.location)
    held = {}
    for tensor, array in (slabs or {}).items():
        kv = plain(tensor.dtype)
        role = next(r for r in "vk" if slab_encoding(device, kv, r) == encoding_of(tensor))
        held[tensor] = device.allocate_slab(array.shape, kv, role)
        device.write(array, held[tensor])
    bindings = Bindings(
        slabs={tensor.id: kept for tensor, kept in held.items()},
        data={tensor.id: value for tensor, value in data},
    )
    try:
        (value,) = context.realize(result.graph, [result.id], bindings, SymEnv(env or {}))
        return value
    finally:
        for tensor, array in (slabs or {}).items():
            array[...] = device.download(held[tensor], array.shape)


def raw(data: Any) -> np.ndarray:
    """The array behind a part, of any device."""
    array: np.ndarray = getattr(data, "array", data)
    return array


def piece(part: Part, role: str, begin: int, end: int) -> Part:
    """Some bytes of a part's memory, as its device holds memory."""
    array = raw(part.data)
    some = array.view(np.uint8)[begin:end]
    return Part(role, end - begin, Buffer(some) if isinstance(part.data, Buffer) else some.view(array.dtype))


def encoding_of(tensor: Tensor) -> Encoding:
    op = tensor.graph[tensor.id].op
    assert isinstance(op, Const)
    return op.encoding
