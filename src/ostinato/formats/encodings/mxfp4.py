"""MXFP4: 32 four-bit floats (E2M1) under a power of two (E8M0).

ggml's `block_mxfp4` (ggml-common.h), 17 bytes: `e` uint8, `qs` uint8[16], the nibbles as in Q4_0. The
format is OCP's (Microscaling Formats v1.0); ggml holds the E2M1 values doubled, so as to have integers, and
the scale halved: weight = 2^(e - 128) * DOUBLED_E2M1[nibble] in float32. ggml knows no NaN scale (`e` = 255).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.bitfields import bit_fields
from ostinato.formats.encodings.codec import Codec
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("e", "u1"), ("qs", "u1", 16)])

DOUBLED_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""`kvalues_mxfp4` of ggml-common.h; there is no negative zero."""
DOUBLED_E2M1.flags.writeable = False

_HALVED_E8M0 = np.ldexp(np.float32(1), np.arange(256) - 128)  # [256], the first two subnormal
_HALVED_E8M0.flags.writeable = False


class MXFP4Codec(Codec):
    """4.25 bits a weight."""

    encoding = e.MXFP4

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        out[...] = np.take(DOUBLED_E2M1, bit_fields(fields["qs"], 4)).reshape(out.shape)  # [n, 2, 16]
        out *= np.take(_HALVED_E8M0, fields["e"])[:, None]  # [n, 1]
