"""IQ3_S: 256 weights as 64 points of a grid of 512, with a sign bit each and a four-bit scale for each 32.

ggml's `block_iq3_s` (ggml-common.h), 110 bytes: `d` f16, `qs` uint8[64], `qh` uint8[8], `signs` uint8[32],
`scales` uint8[4]. `qs` is the low byte of the grid indices, the bits of `qh` their ninth in order, the
nibbles of `scales` the scales. Weight = d * (1 + 2 * scale) * (signed coordinate) in float32, from the left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings import iq_grids
from ostinato.formats.encodings.bitfields import byte_fields
from ostinato.formats.encodings.codec import Codec
from ostinato.formats.encodings.iq_signs import SIGNS, signed
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)])


class IQ3_SCodec(Codec):  # noqa: N801  (ggml's name)
    """3.4375 bits a weight."""

    encoding = e.IQ3_S

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        index = byte_fields(fields["qh"], 1).astype(np.uint16) << 8 | fields["qs"]  # [n, 64]
        out[...] = signed(np.take(iq_grids.iq3_s(), index), np.take(SIGNS, fields["signs"]))
        d = fields["d"].astype(np.float32)[:, None]  # [n, 1]
        groups = out.reshape(-1, 8, 32)
        groups *= (d * (byte_fields(fields["scales"], 4) * 2 + 1))[..., None]
