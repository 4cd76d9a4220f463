"""Q8_0: 32 signed bytes under one scale.

ggml's `block_q8_0` (ggml-common.h), 34 bytes: `d` f16, `qs` int8[32]; weight i = qs[i] * d in float32.

Encoding (ggml's `quantize_row_q8_0_ref`): d = the largest magnitude / 127, a quant = value * (1 / d) rounded
to nearest, halves away from zero, all in float32; `d` is rounded to f16 only where it is stored.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.encoder import Encoder, reciprocal, settle
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("qs", "i1", 32)])


class Q8_0Codec(Encoder):  # noqa: N801  (ggml's name)
    """8.5 bits a weight, symmetric."""

    encoding = e.Q8_0

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)  # [n, 1]
        out[...] = fields["qs"][:, 0]  # [n, 32]
        out *= fields["d"].astype(np.float32)  # [n, 1]

    def _encode_blocks(self, values: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
        fields = out.view(_BLOCK)[:, 0]
        d = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)  # [n, 1]
        inverse = reciprocal(d)
        quants = values * inverse  # [n, 32]
        whole = np.trunc(quants)
        quants -= whole  # the fraction, exact
        quants *= 2
        whole += np.trunc(quants, out=quants)  # a half or more: away from zero
        settle(whole, d, inverse)
        fields["d"] = d[:, 0]
        fields["qs"] = whole
