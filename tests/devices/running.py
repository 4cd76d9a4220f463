"""Realising small graphs in tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from ostinato.device.storage import Part, Storage
from ostinato.ir import ConstRole, DType, Graph, Location, SymEnv, Tensor
from ostinato.ir.encoding import plain
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


def run(
    context: InferenceContext,
    result: Tensor,
    *data: tuple[Tensor, np.ndarray],
    slabs: dict[Tensor, np.ndarray] | None = None,
    env: dict[Any, int] | None = None,
) -> np.ndarray:
    """The value of `result` on the reference device."""
    bindings = Bindings(
        slabs={tensor.id: storage(array) for tensor, array in (slabs or {}).items()},
        data={tensor.id: value for tensor, value in data},
    )
    (value,) = context.realize(result.graph, [result.id], bindings, SymEnv(env or {}))
    return value
