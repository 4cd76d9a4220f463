"""Q4_1: 32 nibbles under a scale and a minimum.

ggml's `block_q4_1` (ggml-common.h), 20 bytes: `d` f16, `m` f16, `qs` uint8[16]. The low nibble of byte j
is weight j, the high one weight j + 16; weight = d * nibble + m in float32, rounded after each operation.

Encoding (ggml's `quantize_row_q4_1_ref`): m = the least value, d = (the greatest - m) / 15, a nibble =
(value - m) * (1 / d) + 0.5 cut to an integer, at most 15; all in float32, `d` and `m` rounded to f16 only
where they are stored.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.encoder import Encoder, reciprocal, settle
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])


class Q4_1Codec(Encoder):  # noqa: N801  (ggml's name)
    """5 bits a weight, asymmetric."""

    encoding = e.Q4_1

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        qs = np.ascontiguousarray(fields["qs"])  # [n, 16]
        out[:, :16] = qs & 0x0F
        out[:, 16:] = qs >> 4
        out *= fields["d"].astype(np.float32)[:, None]  # [n, 1]
        out += fields["m"].astype(np.float32)[:, None]  # [n, 1]

    def _encode_blocks(self, values: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
        fields = out.view(_BLOCK)[:, 0]
        m = values.min(axis=1, keepdims=True)  # [n, 1]
        d = (values.max(axis=1, keepdims=True) - m) / np.float32(15)  # [n, 1]
        inverse = reciprocal(d)
        quants = values - m  # [n, 32]
        quants *= inverse
        quants += np.float32(0.5)
        settle(quants, d, inverse)
        nibbles = np.minimum(quants, 15).astype(np.uint8)  # not negative: the cast cuts
        fields["d"] = d[:, 0]
        fields["m"] = m[:, 0]
        fields["qs"] = nibbles[:, :16] | nibbles[:, 16:] << 4
