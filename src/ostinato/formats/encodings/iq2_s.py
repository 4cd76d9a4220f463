"""IQ2_S: 256 weights as 32 points of a grid of 1024, with a sign bit each and a four-bit scale for each 16.

ggml's `block_iq2_s` (ggml-common.h), 82 bytes: `d` f16, `qs` uint8[64], `qh` uint8[8], `scales` uint8[8].
The first half of `qs` is the low byte of the grid indices, the second half the signs; the two-bit fields
of `qh` are the indices' high bits in order, the nibbles of `scales` the scales.
Weight = d * (0.5 + scale) * 0.25 * (signed coordinate) in float32, from the left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings import iq_grids
from ostinato.formats.encodings.bitfields import byte_fields
from ostinato.formats.encodings.codec import Codec
from ostinato.formats.encodings.iq_signs import SIGNS, signed
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)])


class IQ2_SCodec(Codec):  # noqa: N801  (ggml's name)
    """2.5625 bits a weight."""

    encoding = e.IQ2_S

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        index = byte_fields(fields["qh"], 2).astype(np.uint16) << 8 | fields["qs"]  # [n, 32]
        out[...] = signed(np.take(iq_grids.iq2_s(), index), np.take(SIGNS, fields["signs"]))
        d = fields["d"].astype(np.float32)[:, None]  # [n, 1]
        groups = out.reshape(-1, 16, 16)
        groups *= (d * (byte_fields(fields["scales"], 4).astype(np.float32) + 0.5) * 0.25)[..., None]
