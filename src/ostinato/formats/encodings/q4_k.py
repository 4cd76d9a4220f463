"""Q4_K: 256 nibbles in groups of 32 with a six-bit scale and minimum each.

ggml's `block_q4_K` (ggml-common.h), 144 bytes: `d` f16, `dmin` f16, `scales` uint8[12], `qs` uint8[128].
`qs` is four runs of 32 bytes; a run holds two groups, the first in the low nibbles.
Weight = (d * scale) * quant - (dmin * minimum) in float32, rounded after each operation; `scales` as
`k_scales.scales_and_minimums` has it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.bitfields import bit_fields
from ostinato.formats.encodings.codec import Codec
from ostinato.formats.encodings.k_scales import scales_and_minimums
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", (4, 32))])


class Q4_KCodec(Codec):  # noqa: N801  (ggml's name)
    """4.5 bits a weight, asymmetric."""

    encoding = e.Q4_K

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        scales, minimums = scales_and_minimums(fields["scales"])  # [n, 8] each
        scales *= fields["d"].astype(np.float32)[:, None]
        minimums *= fields["dmin"].astype(np.float32)[:, None]
        out[...] = bit_fields(fields["qs"], 4).reshape(out.shape)  # [n, 4, 2, 32]
        groups = out.reshape(-1, 8, 32)
        groups *= scales[..., None]
        groups -= minimums[..., None]
