"""A slab of Q8_0 keys or values that kernels take for an array of float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.device.kv_q8_0 import blocks, dequantize, quantize
from ostinato.device.storage import Storage
from ostinato.ir.encoding import Q8_0

Index = tuple[Any, ...]


class QuantizedSlab:
    """`shape` `[1, kv_heads, capacity, head_dim]` over a storage of int8 values `[..., blocks · 32]` and
    float16 scales `[..., blocks]`. Read and written by rows: an index leaves the last axis out. What is
    written is rounded (`device.kv_q8_0`), what is read is a new array."""

    def __init__(self, storage: Storage, shape: tuple[int, ...]) -> None:
        values, scales = (part.data for part in storage.parts)
        count = blocks(shape[-1])
        self.shape, self.ndim = shape, len(shape)
        self._q: npt.NDArray[np.int8] = values.reshape(*shape[:-1], count * Q8_0.block)
        self._d: npt.NDArray[np.float16] = scales.reshape(*shape[:-1], count)

    def __getitem__(self, index: Index) -> npt.NDArray[Any]:
        return dequantize(self._q[index], self._d[index], self.shape[-1])

    def __setitem__(self, index: Index, rows: npt.NDArray[Any]) -> None:
        self._q[index], self._d[index] = quantize(rows)

    def copy(self) -> npt.NDArray[Any]:
        """All of it."""
        return self[...,]


def sizes(shape: tuple[int, ...]) -> tuple[int, int]:
    """Values and scales of a slab of this shape."""
    rows = int(np.prod(shape[:-1])) * blocks(shape[-1])
    return rows * Q8_0.block, rows
