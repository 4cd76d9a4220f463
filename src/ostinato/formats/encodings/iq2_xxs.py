"""IQ2_XXS: 256 weights as 32 points of a grid of 256, with packed signs and a four-bit scale for each 32.

ggml's `block_iq2_xxs` (ggml-common.h), 66 bytes: `d` f16, `qs` uint16[32]. Each group of 32 weights has two
little-endian uint32 of `qs`: the first holds four grid indices, the second four seven-bit signs (lowest
bits first) and above them the scale. Weight = d * (0.5 + scale) * 0.25 * (signed coordinate) in float32,
from the left; a sign changes no rounding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings import iq_grids
from ostinato.formats.encodings.codec import Codec
from ostinato.formats.encodings.iq_signs import EVEN_SIGNS, signed
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("qs", [("points", "u1", 4), ("signs", "<u4")], 8)])
_SIGN_SHIFTS = np.arange(0, 28, 7, dtype=np.uint32)


class IQ2_XXSCodec(Codec):  # noqa: N801  (ggml's name)
    """2.0625 bits a weight."""

    encoding = e.IQ2_XXS

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        packed = fields["qs"]["signs"]  # [n, 8]
        signs = np.take(EVEN_SIGNS, packed[..., None] >> _SIGN_SHIFTS & 0x7F)  # [n, 8, 4]
        out[...] = signed(np.take(iq_grids.iq2_xxs(), fields["qs"]["points"]), signs)
        d = fields["d"].astype(np.float32)[:, None]  # [n, 1]
        groups = out.reshape(-1, 8, 32)
        groups *= (d * ((packed >> 28).astype(np.float32) + 0.5) * 0.25)[..., None]
