"""Q5_1: 32 five-bit quants under a scale and a minimum.

ggml's `block_q5_1` (ggml-common.h), 24 bytes: `d` f16, `m` f16, `qh` uint8[4], `qs` uint8[16], the quants
packed as in Q5_0; weight = d * quant + m in float32, rounded after each operation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.codec import Codec
from ostinato.formats.encodings.q5_0 import five_bits
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])


class Q5_1Codec(Codec):  # noqa: N801  (ggml's name)
    """6 bits a weight, asymmetric."""

    encoding = e.Q5_1

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        out[...] = five_bits(fields["qs"], fields["qh"])
        out *= fields["d"].astype(np.float32)[:, None]  # [n, 1]
        out += fields["m"].astype(np.float32)[:, None]  # [n, 1]
