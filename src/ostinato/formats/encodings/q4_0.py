"""Q4_0: 32 nibbles around 8 under one scale.

ggml's `block_q4_0` (ggml-common.h), 18 bytes: `d` f16, `qs` uint8[16]. The low nibble of byte j is weight
j, the high one weight j + 16; weight = d * (nibble - 8) in float32.

Encoding (ggml's `quantize_row_q4_0_ref`): d = the value of the largest magnitude, the first of several,
/ -8, so that it becomes nibble 0 exactly; a nibble = value * (1 / d) + 8.5 cut to an integer, at most 15;
all in float32, `d` rounded to f16 only where it is stored. A block of zeros has the scale -0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.encoder import Encoder, reciprocal, settle
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])


class Q4_0Codec(Encoder):  # noqa: N801  (ggml's name)
    """4.5 bits a weight, symmetric."""

    encoding = e.Q4_0

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        qs = np.ascontiguousarray(fields["qs"])  # [n, 16]
        out[:, :16] = qs & 0x0F
        out[:, 16:] = qs >> 4
        out -= 8  # exact: small integers
        out *= fields["d"].astype(np.float32)[:, None]  # [n, 1]

    def _encode_blocks(self, values: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
        fields = out.view(_BLOCK)[:, 0]
        largest = np.abs(values).argmax(axis=1, keepdims=True)  # [n, 1]
        d = np.take_along_axis(values, largest, axis=1) / np.float32(-8)  # [n, 1]
        inverse = reciprocal(d)
        quants = values * inverse  # [n, 32]
        quants += np.float32(8.5)
        settle(quants, d, inverse)
        nibbles = np.minimum(quants, 15).astype(np.uint8)  # not negative: the cast cuts
        fields["d"] = d[:, 0]
        fields["qs"] = nibbles[:, :16] | nibbles[:, 16:] << 4
