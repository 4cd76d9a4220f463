"""Q2_K: 256 two-bit quants in groups of 16 with a four-bit scale and minimum each.

ggml's `block_q2_K` (ggml-common.h), 84 bytes: `scales` uint8[16], `qs` uint8[64], `d` f16, `dmin` f16.
`qs` is two runs of 32 bytes; a run holds 128 weights, its lowest two bits the first 32 of them, its
highest the last. Byte g of `scales` has group g's scale below and its minimum above;
weight = (d * scale) * quant - (dmin * minimum) in float32, rounded after each operation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.bitfields import bit_fields
from ostinato.formats.encodings.codec import Codec
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("scales", "u1", 16), ("qs", "u1", (2, 32)), ("d", "<f2"), ("dmin", "<f2")])


class Q2_KCodec(Codec):  # noqa: N801  (ggml's name)
    """2.625 bits a weight, asymmetric."""

    encoding = e.Q2_K

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        d = fields["d"].astype(np.float32)[:, None]  # [n, 1]
        dmin = fields["dmin"].astype(np.float32)[:, None]  # [n, 1]
        scales = fields["scales"]  # [n, 16]
        out[...] = bit_fields(fields["qs"], 2).reshape(out.shape)  # [n, 2, 4, 32]
        groups = out.reshape(-1, 16, 16)
        groups *= (d * (scales & 0x0F))[..., None]
        groups -= (dmin * (scales >> 4))[..., None]
