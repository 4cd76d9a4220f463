"""IQ4_NL: 32 nibbles that index a table of uneven steps, under one scale.

ggml's `block_iq4_nl` (ggml-common.h), 18 bytes: `d` f16, `qs` uint8[16], the nibbles as in Q4_0;
weight = d * STEPS[nibble] in float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.bitfields import bit_fields
from ostinato.formats.encodings.codec import Codec
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])

STEPS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""`kvalues_iq4nl` of ggml-common.h."""
STEPS.flags.writeable = False


class IQ4_NLCodec(Codec):  # noqa: N801  (ggml's name)
    """4.5 bits a weight."""

    encoding = e.IQ4_NL

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        out[...] = np.take(STEPS, bit_fields(fields["qs"], 4)).reshape(out.shape)  # [n, 2, 16]
        out *= fields["d"].astype(np.float32)[:, None]  # [n, 1]
