"""Q5_K: 256 five-bit quants in groups of 32 with a six-bit scale and minimum each.

ggml's `block_q5_K` (ggml-common.h), 176 bytes: `d` f16, `dmin` f16, `scales` uint8[12], `qh` uint8[32],
`qs` uint8[128]. Scales, minimums and the low four bits (`qs`) as in Q4_K; bit g of `qh[j]` is the fifth
bit of weight j of group g.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.bitfields import bit_fields
from ostinato.formats.encodings.codec import Codec
from ostinato.formats.encodings.k_scales import scales_and_minimums
from ostinato.ir import encoding as e

_BLOCK = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", (4, 32))]
)


class Q5_KCodec(Codec):  # noqa: N801  (ggml's name)
    """5.5 bits a weight, asymmetric."""

    encoding = e.Q5_K

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        scales, minimums = scales_and_minimums(fields["scales"])  # [n, 8] each
        scales *= fields["d"].astype(np.float32)[:, None]
        minimums *= fields["dmin"].astype(np.float32)[:, None]
        quants = bit_fields(fields["qh"], 1).reshape(out.shape) << 4  # [n, 8, 32]
        quants |= bit_fields(fields["qs"], 4).reshape(out.shape)  # [n, 4, 2, 32]
        out[...] = quants
        groups = out.reshape(-1, 8, 32)
        groups *= scales[..., None]
        groups -= minimums[..., None]
