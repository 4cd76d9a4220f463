"""What a block codec is, and the walk over blocks that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ostinato.ir.encoding import Encoding

# Weights decoded at a time: the output of a chunk and its temporaries stay in a core's L2 cache.
CHUNK = 1 << 16


class Codec(ABC):
    """Decodes one encoding to float32."""

    encoding: ClassVar[Encoding]

    def decode(self, raw: NDArray[np.uint8], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Decodes rows of blocks.

        Args:
            raw: `[..., bytes of a row]`, uint8; need be neither contiguous nor aligned.
            out: Where to write, `[..., elements of a row]`, float32, C-contiguous; a new array without it.

        Returns:
            `out` or the new array; never a view of `raw`.

        Raises:
            ValueError: `raw` is not whole blocks of uint8, or `out` does not fit it.
        """
        encoding = self.encoding
        if raw.dtype != np.uint8 or raw.ndim == 0 or raw.shape[-1] % encoding.block_bytes:
            raise ValueError(
                f"{encoding} decodes uint8 rows of whole {encoding.block_bytes}-byte blocks, "
                f"got {raw.dtype} {raw.shape}"
            )
        shape = (*raw.shape[:-1], raw.shape[-1] // encoding.block_bytes * encoding.block)
        if out is None:
            out = np.empty(shape, np.float32)
        elif out.dtype != np.float32 or out.shape != shape or not out.flags.c_contiguous:
            raise ValueError(
                f"{encoding} decodes here to C-contiguous float32 {shape}, got {out.dtype} {out.shape}"
            )
        if raw.size == 0:
            return out

        blocks = np.ascontiguousarray(raw).reshape(-1, encoding.block_bytes)  # [blocks, block_bytes]
        values = out.reshape(-1, encoding.block)  # [blocks, block], a view
        step = max(CHUNK // encoding.block, 1)
        # Infinite scales times zero are NaN, as ggml has it, and no reason to warn.
        with np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, len(blocks), step):
                self._decode_blocks(blocks[start : start + step], values[start : start + step])
        return out

    @abstractmethod
    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """`blocks` `[n, block_bytes]` into `out` `[n, block]`, both C-contiguous."""
