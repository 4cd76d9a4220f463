"""IQ4_XS: 256 nibbles that index IQ4_NL's steps, in groups of 32 with a six-bit scale each.

ggml's `block_iq4_xs` (ggml-common.h), 136 bytes: `d` f16, `scales_h` uint16, `scales_l` uint8[4],
`qs` uint8[128]. The nibbles of `scales_l` are the low four bits of the scales in order, the two-bit fields
of `scales_h` their high bits. A group has 16 bytes of `qs`, its first 16 weights in the low nibbles;
weight = (d * (scale - 32)) * STEPS[nibble] in float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.bitfields import bit_fields, byte_fields
from ostinato.formats.encodings.codec import Codec
from ostinato.formats.encodings.iq4_nl import STEPS
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("scales_h", "u1", 2), ("scales_l", "u1", 4), ("qs", "u1", (8, 16))])


class IQ4_XSCodec(Codec):  # noqa: N801  (ggml's name)
    """4.25 bits a weight."""

    encoding = e.IQ4_XS

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        scales = byte_fields(fields["scales_l"], 4) | byte_fields(fields["scales_h"], 2) << 4  # [n, 8]
        d = fields["d"].astype(np.float32)[:, None] * (scales.astype(np.float32) - 32)  # [n, 8]
        out[...] = np.take(STEPS, bit_fields(fields["qs"], 4)).reshape(out.shape)  # [n, 8, 2, 16]
        groups = out.reshape(-1, 8, 32)
        groups *= d[..., None]
