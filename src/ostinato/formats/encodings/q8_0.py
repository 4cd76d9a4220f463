"""Q8_0: 32 signed bytes under one scale.

ggml's `block_q8_0` (ggml-common.h), 34 bytes: `d` f16, `qs` int8[32]; weight i = qs[i] * d in float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.codec import Codec
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("qs", "i1", 32)])


class Q8_0Codec(Codec):  # noqa: N801  (ggml's name)
    """8.5 bits a weight, symmetric."""

    encoding = e.Q8_0

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)  # [n, 1]
        out[...] = fields["qs"][:, 0]  # [n, 32]
        out *= fields["d"].astype(np.float32)  # [n, 1]
