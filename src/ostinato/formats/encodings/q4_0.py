"""Q4_0: 32 nibbles around 8 under one scale.

ggml's `block_q4_0` (ggml-common.h), 18 bytes: `d` f16, `qs` uint8[16]. The low nibble of byte j is weight
j, the high one weight j + 16; weight = d * (nibble - 8) in float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.codec import Codec
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])


class Q4_0Codec(Codec):  # noqa: N801  (ggml's name)
    """4.5 bits a weight, symmetric."""

    encoding = e.Q4_0

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        qs = np.ascontiguousarray(fields["qs"])  # [n, 16]
        out[:, :16] = qs & 0x0F
        out[:, 16:] = qs >> 4
        out -= 8  # exact: small integers
        out *= fields["d"].astype(np.float32)[:, None]  # [n, 1]
