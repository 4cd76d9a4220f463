"""IQ3_XXS: 256 weights as 64 points of a grid of 256, with packed signs and a four-bit scale for each 32.

ggml's `block_iq3_xxs` (ggml-common.h), 98 bytes: `d` f16, `qs` uint8[96]. The first 64 bytes of `qs` are
grid indices, the last 32 a little-endian uint32 for each 32 weights: four seven-bit signs (lowest bits
first) and above them the scale. Weight = d * (0.5 + scale) * 0.5 * (signed coordinate) in float32, from
the left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings import iq_grids
from ostinato.formats.encodings.codec import Codec
from ostinato.formats.encodings.iq_signs import EVEN_SIGNS, signed
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("points", "u1", 64), ("signs", "<u4", 8)])
_SIGN_SHIFTS = np.arange(0, 28, 7, dtype=np.uint32)


class IQ3_XXSCodec(Codec):  # noqa: N801  (ggml's name)
    """3.0625 bits a weight."""

    encoding = e.IQ3_XXS

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        packed = fields["signs"]  # [n, 8]
        signs = np.take(EVEN_SIGNS, packed[..., None] >> _SIGN_SHIFTS & 0x7F)  # [n, 8, 4]
        out[...] = signed(np.take(iq_grids.iq3_xxs(), fields["points"]), signs)
        d = fields["d"].astype(np.float32)[:, None]  # [n, 1]
        groups = out.reshape(-1, 8, 32)
        groups *= (d * ((packed >> 28).astype(np.float32) + 0.5) * 0.5)[..., None]
