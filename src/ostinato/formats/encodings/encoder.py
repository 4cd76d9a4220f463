"""What an encoder is: a codec that also makes blocks of float32 values."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.codec import CHUNK, Codec


class Encoder(Codec):
    """Decodes one encoding, and encodes to it.

    The bytes are those of ggml's reference quantisers (`quantize_row_*_ref`, ggml-quants.c), with which
    any value has an encoding. Where the values of a block don't suit it, it says so when it is decoded:
    a scale beyond float16 is stored as infinity, and a block that holds an infinity or a NaN decodes to
    nothing finite in that block (in plain types, to that infinity or NaN).
    """

    def encode(self, values: NDArray[np.float32], out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """Encodes rows of values.

        Args:
            values: `[..., elements of a row]`, float32; need not be contiguous.
            out: Where to write, `[..., bytes of a row]`, uint8, C-contiguous; a new array without it.

        Returns:
            `out` or the new array; never a view of `values`.

        Raises:
            ValueError: `values` is not whole blocks of float32, or `out` does not fit it.
        """
        encoding = self.encoding
        if values.dtype != np.float32 or values.ndim == 0 or values.shape[-1] % encoding.block:
            raise ValueError(
                f"{encoding} encodes float32 rows of whole {encoding.block}-element blocks, "
                f"got {values.dtype} {values.shape}"
            )
        shape = (*values.shape[:-1], encoding.row_bytes(values.shape[-1]))
        if out is None:
            out = np.empty(shape, np.uint8)
        elif out.dtype != np.uint8 or out.shape != shape or not out.flags.c_contiguous:
            raise ValueError(
                f"{encoding} encodes here to C-contiguous uint8 {shape}, got {out.dtype} {out.shape}"
            )
        if values.size == 0:
            return out

        rows = np.ascontiguousarray(values).reshape(-1, encoding.block)  # [blocks, block]
        blocks = out.reshape(-1, encoding.block_bytes)  # [blocks, block_bytes], a view
        step = max(CHUNK // encoding.block, 1)
        # Scales that overflow or vanish are part of the format, and no reason to warn.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            for start in range(0, len(rows), step):
                self._encode_blocks(rows[start : start + step], blocks[start : start + step])
        return out

    @abstractmethod
    def _encode_blocks(self, values: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
        """`values` `[n, block]`, not to be changed, into `out` `[n, block_bytes]`, both C-contiguous."""


def reciprocal(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """What ggml multiplies by instead of dividing by `scale`; 0 where that is 0."""
    return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


def settle(quants: NDArray[np.float32], scale: NDArray[np.float32], inverse: NDArray[np.float32]) -> None:
    """Sets quants that are no numbers to 0, in place; casting them to integers would be up to the processor.

    They come from a scale that is infinite or NaN, or so small that its reciprocal is infinite.

    Args:
        quants: `[n, block]`.
        scale: `[n, 1]`, float32.
        inverse: `[n, 1]`, its `reciprocal`.
    """
    odd = ~np.isfinite(scale * inverse)[:, 0]
    if odd.any():
        quants[odd] = np.where(np.isfinite(quants[odd]), quants[odd], np.float32(0))
