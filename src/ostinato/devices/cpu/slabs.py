"""How KV slabs lie in memory.

Attention multiplies 16 positions of K at once and 16 elements of a V row at once:

    K  [kv_heads][ceil(capacity / 32)][dim][32]
    V  [kv_heads][capacity rounded up to 32][dim rounded up to 16]

so scores and sums need no horizontal additions, and one step's row touches one block. Positions past the
capacity and elements past the dim are there, never written by kernels with anything but zero, and never used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.device.traits import SlabLayout
from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding

BLOCK = 32
"""Positions of a block of K."""

LANES = 16

_ENCODINGS = {
    (DType.F16, "k"): Encoding("F16:k32", BLOCK, 2 * BLOCK),
    (DType.F16, "v"): Encoding("F16:v16", LANES, 2 * LANES),
    (DType.F32, "k"): Encoding("F32:k32", BLOCK, 4 * BLOCK),
    (DType.F32, "v"): Encoding("F32:v16", LANES, 4 * LANES),
}


def slab_encoding(dtype: DType, role: str) -> Encoding:
    """The encoding of a slab, `role` "k" or "v": not a plain one, so nothing takes a slab for an array."""
    return _ENCODINGS[dtype, role]


def slab_role(encoding: Encoding) -> str | None:
    """ "k" or "v" for the encoding of a slab, None for any other."""
    return next((role for (_, role), known in _ENCODINGS.items() if known == encoding), None)


def slab_layout(dtype: DType) -> SlabLayout:
    """What plans know of it."""
    return SlabLayout(slab_encoding(dtype, "k"), slab_encoding(dtype, "v"), (BLOCK, 1), (BLOCK, LANES))


@dataclass(frozen=True)
class SlabGeometry:
    """One slab: `dtype` F16 or F32, `role` "k" or "v". Strides are bytes."""

    kv_heads: int
    capacity: int
    dim: int
    dtype: DType
    role: str

    @classmethod
    def of(cls, shape: Sequence[int], dtype: DType, role: str) -> SlabGeometry:
        """From the logical shape `[1, kv_heads, capacity, dim]`."""
        one, kv_heads, capacity, dim = shape
        assert one == 1, shape
        return cls(kv_heads, capacity, dim, dtype, role)

    @property
    def encoding(self) -> Encoding:
        return slab_encoding(self.dtype, self.role)

    @property
    def blocks(self) -> int:
        return -(-self.capacity // BLOCK)

    @property
    def width(self) -> int:
        """Elements of a stored V row."""
        return -(-self.dim // LANES) * LANES

    @property
    def element(self) -> int:
        """Bytes of an element."""
        return self.dtype.nbytes

    @property
    def block_bytes(self) -> int:
        """From the first position of a block to that of the next."""
        return BLOCK * (self.dim if self.role == "k" else self.width) * self.element

    @property
    def head_stride(self) -> int:
        return self.blocks * self.block_bytes

    @property
    def nbytes(self) -> int:
        return self.kv_heads * self.head_stride

    def _view(self, buffer: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """K `[kv_heads, blocks, dim, 32]`, V `[kv_heads, 32 · blocks, width]`, in the buffer's own memory."""
        values: npt.NDArray[Any] = buffer[: self.nbytes].view(self.dtype.numpy)
        if self.role == "k":
            return values.reshape(self.kv_heads, self.blocks, self.dim, BLOCK)
        return values.reshape(self.kv_heads, self.blocks * BLOCK, self.width)

    def to_logical(self, buffer: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """The slab in `buffer` as a new array `[1, kv_heads, capacity, dim]`."""
        values = self._view(buffer)
        if self.role == "k":
            values = values.transpose(0, 1, 3, 2).reshape(self.kv_heads, self.blocks * BLOCK, self.dim)
        copy: npt.NDArray[Any] = values[np.newaxis, :, : self.capacity, : self.dim].copy()
        return copy

    def from_logical(self, values: npt.NDArray[Any], buffer: npt.NDArray[np.uint8]) -> None:
        """Write `values` `[1, kv_heads, capacity, dim]` over the slab in `buffer`; what pads it stays."""
        assert values.shape == (1, self.kv_heads, self.capacity, self.dim), values.shape
        target, source = self._view(buffer), values[0]
        if self.role == "v":
            target[:, : self.capacity, : self.dim] = source
            return
        whole, rest = divmod(self.capacity, BLOCK)
        full = source[:, : whole * BLOCK].reshape(self.kv_heads, whole, BLOCK, self.dim)
        target[:, :whole] = full.transpose(0, 1, 3, 2)
        if rest:
            target[:, whole, :, :rest] = source[:, whole * BLOCK :].transpose(0, 2, 1)
