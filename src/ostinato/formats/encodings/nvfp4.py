"""NVFP4: 64 four-bit floats (E2M1) in groups of 16 with an eight-bit float (UE4M3) of scale each.

ggml's `block_nvfp4` (ggml-common.h), 36 bytes: `d` uint8[4], `qs` uint8[32]. A group has 8 bytes of `qs`,
its first 8 weights in the low nibbles. As in MXFP4 the E2M1 values are held doubled and the scale halved;
weight = scale * DOUBLED_E2M1[nibble] in float32. A scale's top bit is ignored, and 0x7F, E4M3's NaN, is 0.
The scale of the whole tensor, which the format also has, is a tensor of its own in GGUF (`….scale` beside
`….weight`): whoever multiplies by such a weight applies it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.bitfields import bit_fields
from ostinato.formats.encodings.codec import Codec
from ostinato.formats.encodings.mxfp4 import DOUBLED_E2M1
from ostinato.ir import encoding as e

_BLOCK = np.dtype([("d", "u1", 4), ("qs", "u1", (4, 8))])


def _halved_ue4m3() -> NDArray[np.float32]:
    """What each byte of scale stands for, `[256]` (ggml's `ggml_ue4m3_to_fp32`)."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 0x0F, byte & 0x07
    significand = np.where(exponent == 0, mantissa, mantissa + 8)  # in eighths
    values: NDArray[np.float32] = np.ldexp(
        significand.astype(np.float32), np.maximum(exponent, 1) - 7 - 3 - 1
    )
    values[0x7F] = 0
    values.flags.writeable = False
    return values


_HALVED_UE4M3 = _halved_ue4m3()


class NVFP4Codec(Codec):
    """4.5 bits a weight."""

    encoding = e.NVFP4

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        fields = blocks.view(_BLOCK)[:, 0]
        out[...] = np.take(DOUBLED_E2M1, bit_fields(fields["qs"], 4)).reshape(out.shape)  # [n, 4, 2, 8]
        groups = out.reshape(-1, 4, 16)
        groups *= np.take(_HALVED_UE4M3, fields["d"])[..., None]
