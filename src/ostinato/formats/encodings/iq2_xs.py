"""IQ2_XS: 256 weights as 32 points of a grid of 512, with packed signs and a four-bit scale for each 16.

ggml's `block_iq2_xs` (ggml-common.h), 74 bytes: `d` f16, `qs` uint16[32], `scales` uint8[8]. A uint16 is
a nine-bit grid index and above it a seven-bit sign; the nibbles of `scales` are the scales in order.
Weight = d * (0.5 + scale) * 0.25 * (signed coordinate) in float32, from the left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings import iq_grids
from ostinato.formats.encodings.bitfields import byte_fields
from ostinato.formats.encodings.codec import Codec
from ostinato.formats.encodings.iq_signs import EVEN_SIGNS, signed
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])


class IQ2_XSCodec(Codec):  # noqa: N801  (ggml's name)
    """2.3125 bits a weight."""

    encoding = e.IQ2_XS

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        qs = fields["qs"]  # [n, 32]
        out[...] = signed(np.take(iq_grids.iq2_xs(), qs & 0x1FF), np.take(EVEN_SIGNS, qs >> 9))
        d = fields["d"].astype(np.float32)[:, None]  # [n, 1]
        groups = out.reshape(-1, 16, 16)
        groups *= (d * (byte_fields(fields["scales"], 4).astype(np.float32) + 0.5) * 0.25)[..., None]
