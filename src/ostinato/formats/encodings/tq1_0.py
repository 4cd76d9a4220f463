"""TQ1_0: 256 ternary digits, five to a byte, under one scale.

ggml's `block_tq1_0` (ggml-common.h), 54 bytes: `qs` uint8[48], `qh` uint8[4], `d` f16. A byte is a fraction
of 256 whose base-3 digits are the quants, first digit first: multiplying by 3 moves the next one above the
point. The first 32 bytes of `qs` hold digits of weights 0-159 (byte j of weights j, j + 32, …), its last 16
those of 160-239, and `qh`, with four digits a byte, those of 240-255. Weight = d * (digit - 1) in float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.codec import Codec
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])


def _digits(packed: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """The first `count` digits of each byte: `[n, bytes]` to `[n, count * bytes]`, each digit's together."""
    powers = 3 ** np.arange(count, dtype=np.uint8)[:, None]  # [count, 1]
    fractions = packed[:, None, :] * powers  # uint8 wraps: what is above the point falls away
    return (fractions.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(len(packed), -1)


class TQ1_0Codec(Codec):  # noqa: N801  (ggml's name)
    """1.6875 bits a weight."""

    encoding = e.TQ1_0

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        out[:, :160] = _digits(fields["qs"][:, :32], 5)
        out[:, 160:240] = _digits(fields["qs"][:, 32:], 5)
        out[:, 240:] = _digits(fields["qh"], 4)
        out -= 1  # exact: small integers
        out *= fields["d"].astype(np.float32)[:, None]  # [n, 1]
