"""Q4_1: 32 nibbles under a scale and a minimum.

ggml's `block_q4_1` (ggml-common.h), 20 bytes: `d` f16, `m` f16, `qs` uint8[16]. The low nibble of byte j
is weight j, the high one weight j + 16; weight = d * nibble + m in float32, rounded after each operation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.codec import Codec
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])


class Q4_1Codec(Codec):  # noqa: N801  (ggml's name)
    """5 bits a weight, asymmetric."""

    encoding = e.Q4_1

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        qs = np.ascontiguousarray(fields["qs"])  # [n, 16]
        out[:, :16] = qs & 0x0F
        out[:, 16:] = qs >> 4
        out *= fields["d"].astype(np.float32)[:, None]  # [n, 1]
        out += fields["m"].astype(np.float32)[:, None]  # [n, 1]
