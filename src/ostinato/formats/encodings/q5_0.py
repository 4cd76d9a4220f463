"""Q5_0: 32 five-bit quants around 16 under one scale.

ggml's `block_q5_0` (ggml-common.h), 22 bytes: `d` f16, `qh` uint8[4], `qs` uint8[16]. The low nibble of
`qs[j]` is the low four bits of quant j, the high one those of quant j + 16; bit j of `qh`, read as one
little-endian number, is the fifth bit of quant j. Weight = d * (quant - 16) in float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.bitfields import bit_fields
from ostinato.formats.encodings.codec import Codec
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])


def five_bits(qs: NDArray[np.uint8], qh: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The quants of Q5_0 and Q5_1: `qs` `[n, 16]` and `qh` `[n, 4]` to `[n, 32]`."""
    quants = bit_fields(qs, 4).reshape(-1, 32)
    quants |= np.unpackbits(qh, axis=-1, bitorder="little") << 4
    return quants


class Q5_0Codec(Codec):  # noqa: N801  (ggml's name)
    """5.5 bits a weight, symmetric."""

    encoding = e.Q5_0

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        out[...] = five_bits(fields["qs"], fields["qh"])
        out -= 16  # exact: small integers
        out *= fields["d"].astype(np.float32)[:, None]  # [n, 1]
