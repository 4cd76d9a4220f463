"""How KV slabs lie in memory.

Attention multiplies 16 positions of K at once and 16 elements of a V row at once:

    K  [kv_heads][ceil(capacity / 32)][dim][32]
    V  [kv_heads][capacity rounded up to 32][dim rounded up to 16]

so scores and sums need no horizontal additions, and one step's row touches one block. Positions past the
capacity and elements past the dim are there, never written by kernels with anything but zero, and never used.

Of Q8_0 (`device.kv_q8_0`) these are the int8 values, the dim being rounded up to 32. The scales of a KV head
follow its values: float16 `[ceil(capacity / 32)][ceil(dim / 32)][32]`, so that those of 16 positions are read
at once for K and V alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.device.kv_q8_0 import blocks, dequantize, quantize
from ostinato.device.traits import SlabLayout
from ostinato.ir import encoding as enc
from ostinato.ir.encoding import Encoding

BLOCK = 32
"""Positions of a block of K."""

LANES = 16

_ENCODINGS = {
    (enc.F16, "k"): Encoding("F16:k32", BLOCK, 2 * BLOCK),
    (enc.F16, "v"): Encoding("F16:v16", LANES, 2 * LANES),
    (enc.F32, "k"): Encoding("F32:k32", BLOCK, 4 * BLOCK),
    (enc.F32, "v"): Encoding("F32:v16", LANES, 4 * LANES),
    (enc.Q8_0, "k"): Encoding("Q8_0:k32", BLOCK, enc.Q8_0.block_bytes),
    (enc.Q8_0, "v"): Encoding("Q8_0:v32", BLOCK, enc.Q8_0.block_bytes),
}


def slab_encoding(kv: Encoding, role: str) -> Encoding:
    """The encoding of a slab, `role` "k" or "v": not a plain one, so nothing takes a slab for an array."""
    return _ENCODINGS[kv, role]


def slab_kind(encoding: Encoding) -> tuple[Encoding, str] | None:
    """The KV type and the role, "k" or "v", of a slab of this encoding; None for any other."""
    return next((kind for kind, known in _ENCODINGS.items() if known == encoding), None)


def slab_layout(kv: Encoding) -> SlabLayout:
    """What plans know of it."""
    quantized = kv == enc.Q8_0
    fills = (BLOCK, kv.block if quantized else 1), (BLOCK, kv.block if quantized else LANES)
    return SlabLayout(slab_encoding(kv, "k"), slab_encoding(kv, "v"), *fills)


@dataclass(frozen=True)
class SlabGeometry:
    """One slab: `kv` F16, F32 or Q8_0, `role` "k" or "v". Strides are bytes."""

    kv_heads: int
    capacity: int
    dim: int
    kv: Encoding
    role: str

    @classmethod
    def of(cls, shape: Sequence[int], kv: Encoding, role: str) -> SlabGeometry:
        """From the logical shape `[1, kv_heads, capacity, dim]`."""
        one, kv_heads, capacity, dim = shape
        assert one == 1, shape
        return cls(kv_heads, capacity, dim, kv, role)

    @property
    def encoding(self) -> Encoding:
        return slab_encoding(self.kv, self.role)

    @property
    def quantized(self) -> bool:
        return self.kv == enc.Q8_0

    @property
    def scales(self) -> int:
        """Scales of a position; 0 where there are none."""
        return blocks(self.dim) if self.quantized else 0

    @property
    def blocks(self) -> int:
        return -(-self.capacity // BLOCK)

    @property
    def width(self) -> int:
        """Elements of a stored row."""
        if self.quantized:
            return self.scales * self.kv.block
        return self.dim if self.role == "k" else -(-self.dim // LANES) * LANES

    @property
    def element(self) -> int:
        """Bytes of an element."""
        return 1 if self.quantized else self.kv.block_bytes

    @property
    def block_bytes(self) -> int:
        """From the values of a block's first position to those of the next block's."""
        return BLOCK * self.width * self.element

    @property
    def scale_bytes(self) -> int:
        """From the scales of a block to those of the next."""
        return BLOCK * self.scales * 2

    @property
    def scales_at(self) -> int:
        """From a head's first value to its first scale."""
        return self.blocks * self.block_bytes

    @property
    def head_stride(self) -> int:
        return self.blocks * (self.block_bytes + self.scale_bytes)

    @property
    def nbytes(self) -> int:
        return self.kv_heads * self.head_stride

    def _views(self, buffer: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[Any], npt.NDArray[np.float16]]:
        """Values `[kv_heads, blocks, 32, width]` and scales `[kv_heads, blocks, 32, scales]`, in the buffer's
        own memory."""
        heads = buffer[: self.nbytes].reshape(self.kv_heads, self.head_stride)
        numpy = np.dtype(np.int8) if self.quantized else enc.element(self.kv).numpy
        values = heads[:, : self.scales_at].view(numpy)
        scales = heads[:, self.scales_at :].view(np.float16)
        inner = (self.width, BLOCK) if self.role == "k" else (BLOCK, self.width)
        values = values.reshape(self.kv_heads, self.blocks, *inner)
        scales = scales.reshape(self.kv_heads, self.blocks, self.scales, BLOCK).swapaxes(2, 3)
        return values.swapaxes(2, 3) if self.role == "k" else values, scales

    def to_logical(self, buffer: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """The slab in `buffer` as a new array `[1, kv_heads, capacity, dim]`."""
        values, scales = self._views(buffer)
        rows = dequantize(values, scales, self.dim) if self.quantized else values[..., : self.dim]
        rows = rows.reshape(1, self.kv_heads, self.blocks * BLOCK, self.dim)
        copy: npt.NDArray[Any] = rows[:, :, : self.capacity].copy()
        return copy

    def from_logical(self, values: npt.NDArray[Any], buffer: npt.NDArray[np.uint8]) -> None:
        """Write `values` `[1, kv_heads, capacity, dim]` over the slab in `buffer`; what pads it stays, but
        for what fills up a block of Q8_0."""
        assert values.shape == (1, self.kv_heads, self.capacity, self.dim), values.shape
        targets = self._views(buffer)
        sources: tuple[npt.NDArray[Any], ...] = quantize(values[0]) if self.quantized else (values[0],)
        whole, rest = divmod(self.capacity, BLOCK)
        for target, source in zip(targets, sources, strict=False):
            width = source.shape[-1]
            full = source[:, : whole * BLOCK].reshape(self.kv_heads, whole, BLOCK, width)
            target[:, :whole, :, :width] = full
            if rest:
                target[:, whole, :rest, :width] = source[:, whole * BLOCK :]
