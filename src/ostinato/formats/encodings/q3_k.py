"""Q3_K: 256 three-bit quants around 4 in groups of 16 with a six-bit scale each.

ggml's `block_q3_K` (ggml-common.h), 110 bytes: `hmask` uint8[32], `qs` uint8[64], `scales` uint8[12],
`d` f16. `qs` holds the low two bits as in Q2_K; bit i of `hmask[j]` is the third bit of weight 32 * i + j.
Weight = (d * scale) * (quant - 4) in float32; `scales` as `k_scales.signed_scales` has it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.bitfields import bit_fields
from ostinato.formats.encodings.codec import Codec
from ostinato.formats.encodings.k_scales import signed_scales
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("hmask", "u1", 32), ("qs", "u1", (2, 32)), ("scales", "u1", 12), ("d", "<f2")])


class Q3_KCodec(Codec):  # noqa: N801  (ggml's name)
    """3.4375 bits a weight, symmetric."""

    encoding = e.Q3_K

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        quants = bit_fields(fields["hmask"], 1).reshape(out.shape) << 2  # [n, 8, 32]
        quants |= bit_fields(fields["qs"], 2).reshape(out.shape)  # [n, 2, 4, 32]
        out[...] = quants
        out -= 4  # exact: small integers
        groups = out.reshape(-1, 16, 16)
        d = fields["d"].astype(np.float32)[:, None]  # [n, 1]
        groups *= (d * signed_scales(fields["scales"]))[..., None]
