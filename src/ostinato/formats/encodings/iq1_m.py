"""IQ1_M: 256 weights as 32 points of IQ1_S's grid, with a shift for each 8 and a three-bit scale for each 16.

ggml's `block_iq1_m` (ggml-common.h), 56 bytes: `qs` uint8[32], `qh` uint8[16], `scales` uint8[8]. `qs` is
the low byte of the grid indices; the nibbles of `qh` in order hold an index's high three bits and above
them the shift's sign. `scales` is four little-endian uint16, each with four scales (lowest bits first) and
in its top four bits a quarter of the block's f16 `d`, the first the lowest.
Weight = d * (2 * scale + 1) * (coordinate + shift) in float32, the eighths as in IQ1_S.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings import iq_grids
from ostinato.formats.encodings.bitfields import byte_fields
from ostinato.formats.encodings.codec import Codec
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])
_SCALE_SHIFTS = np.arange(0, 12, 3, dtype=np.uint16)
_QUARTERS = np.arange(0, 16, 4, dtype=np.uint16)


class IQ1_MCodec(Codec):  # noqa: N801  (ggml's name)
    """1.75 bits a weight."""

    encoding = e.IQ1_M

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        packed = fields["scales"].astype(np.uint16)  # [n, 4], native order
        # The nibble's fourth bit, the shift's sign, picks the half of the table.
        index = byte_fields(fields["qh"], 4).astype(np.uint16) << 8 | fields["qs"]  # [n, 32]
        out[...] = np.take(iq_grids.iq1_shifted(), index).view(np.int8).reshape(out.shape)
        d = np.bitwise_or.reduce(packed >> 12 << _QUARTERS, axis=-1).view(np.float16)  # [n]
        scales = (packed[..., None] >> _SCALE_SHIFTS & 7).reshape(-1, 16)
        groups = out.reshape(-1, 16, 16)
        groups *= (d.astype(np.float32)[:, None] * np.float32(0.125) * (scales * 2 + 1))[..., None]
