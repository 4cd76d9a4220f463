"""Q6_K: 256 six-bit quants around 32 in groups of 16 with a signed byte of scale each.

ggml's `block_q6_K` (ggml-common.h), 210 bytes: `ql` uint8[128], `qh` uint8[64], `scales` int8[16], `d` f16.
Each half of the block (128 weights) has 64 bytes of `ql`, whose low nibbles are the low four bits of its
first 64 weights, and 32 bytes of `qh`, whose lowest two bits are the high bits of its first 32 weights.
Weight = (d * scale) * (quant - 32) in float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.bitfields import bit_fields
from ostinato.formats.encodings.codec import Codec
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("ql", "u1", (2, 64)), ("qh", "u1", (2, 32)), ("scales", "i1", 16), ("d", "<f2")])


class Q6_KCodec(Codec):  # noqa: N801  (ggml's name)
    """6.5625 bits a weight, symmetric."""

    encoding = e.Q6_K

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        quants = bit_fields(fields["qh"], 2).reshape(out.shape) << 4  # [n, 2, 4, 32]
        quants |= bit_fields(fields["ql"], 4).reshape(out.shape)  # [n, 2, 2, 64]
        out[...] = quants
        out -= 32  # exact: small integers
        groups = out.reshape(-1, 16, 16)
        d = fields["d"].astype(np.float32)[:, None]  # [n, 1]
        groups *= (d * fields["scales"])[..., None]
