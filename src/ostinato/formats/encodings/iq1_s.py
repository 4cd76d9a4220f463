"""IQ1_S: 256 weights as 32 points of a ternary grid of 2048, with a three-bit scale and a shift for each 32.

ggml's `block_iq1_s` (ggml-common.h), 50 bytes: `d` f16, `qs` uint8[32], `qh` uint16[8]. `qs` is the low
byte of the grid indices. A group's uint16 holds the high three bits of its four indices (lowest bits
first), then the scale in bits 12-14; bit 15 is set where the shift is -1/8, else it is +1/8.
Weight = d * (2 * scale + 1) * (coordinate + shift) in float32. The grid is held shifted and in eighths, so
the eighth goes to the scale: a power of two, it changes no rounding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings import iq_grids
from ostinato.formats.encodings.codec import Codec
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", (8, 4)), ("qh", "<u2", 8)])
_INDEX_SHIFTS = np.arange(0, 12, 3, dtype=np.uint16)


class IQ1_SCodec(Codec):  # noqa: N801  (ggml's name)
    """1.5625 bits a weight."""

    encoding = e.IQ1_S

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        qh = fields["qh"]  # [n, 8]
        index = (qh[..., None] >> _INDEX_SHIFTS & 7) << 8 | fields["qs"]  # [n, 8, 4]
        index |= (qh >> 15 << 11)[..., None]  # the second half of the table: shifted down
        out[...] = np.take(iq_grids.iq1_shifted(), index).view(np.int8).reshape(out.shape)
        d = fields["d"].astype(np.float32)[:, None] * np.float32(0.125)  # [n, 1]
        groups = out.reshape(-1, 8, 32)
        groups *= (d * ((qh >> 12 & 7) * 2 + 1))[..., None]
