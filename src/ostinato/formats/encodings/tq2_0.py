"""TQ2_0: 256 ternary quants in two bits each, under one scale.

ggml's `block_tq2_0` (ggml-common.h), 66 bytes: `qs` uint8[64], the quants packed as in Q2_K, `d` f16;
weight = d * (quant - 1) in float32. The fourth value, 3, decodes to 2 * d.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.bitfields import bit_fields
from ostinato.formats.encodings.codec import Codec
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("qs", "u1", (2, 32)), ("d", "<f2")])


class TQ2_0Codec(Codec):  # noqa: N801  (ggml's name)
    """2.0625 bits a weight."""

    encoding = e.TQ2_0

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        out[...] = bit_fields(fields["qs"], 2).reshape(out.shape)  # [n, 2, 4, 32]
        out -= 1  # exact: small integers
        out *= fields["d"].astype(np.float32)[:, None]  # [n, 1]
