"""The six-bit scales of the K-quants: twelve bytes, packed in two ways (ggml-quants.c)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.bitfields import bit_fields


def scales_and_minimums(packed: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Q4_K's and Q5_K's eight scales and eight minimums, each 0 … 63 (`get_scale_min_k4`).

    Of the bytes, 0-3 hold scales 0-3 and 4-7 hold minimums 0-3, in the low six bits; 8-11 hold the low
    four bits of scales 4-7 (low nibble) and of minimums 4-7 (high nibble), whose two high bits are the
    top bits of bytes 0-3 and 4-7.

    Args:
        packed: `[n, 12]`.

    Returns:
        Scales `[n, 8]` and minimums `[n, 8]`.
    """
    scale, minimum, low = packed[:, :4], packed[:, 4:8], packed[:, 8:]  # [n, 4] each
    scales = np.empty((len(packed), 8), np.float32)
    minimums = np.empty_like(scales)
    scales[:, :4] = scale & 0x3F
    scales[:, 4:] = (low & 0x0F) | (scale >> 6 << 4)
    minimums[:, :4] = minimum & 0x3F
    minimums[:, 4:] = (low >> 4) | (minimum >> 6 << 4)
    return scales, minimums


def signed_scales(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Q3_K's sixteen scales, each -32 … 31 (`dequantize_row_q3_K`).

    Of the bytes, 0-7 hold the low four bits of scales 0-7 (low nibble) and 8-15 (high nibble); 8-11 hold
    the high two bits: byte 8 + j of scales j, j + 4, j + 8 and j + 12, from the lowest bits up.

    Args:
        packed: `[n, 12]`.

    Returns:
        `[n, 16]`.
    """
    low = bit_fields(packed[:, :8], 4).reshape(-1, 16)
    high = bit_fields(packed[:, 8:], 2).reshape(-1, 16)
    scales = (low | high << 4).astype(np.float32)
    scales -= 32
    return scales
