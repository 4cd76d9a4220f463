"""F32, F16 and BF16: one element, one number, little-endian; a "block" is one element.

BF16 is the upper half of a float32 (ggml's `ggml_bf16_t`), so decoding it is a shift. All three are exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.codec import Codec
from ostinato.ir import encoding as e


class F32Codec(Codec):
    """IEEE float32, copied as it is."""

    encoding = e.F32

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        out[...] = blocks.view("<f4")


class F16Codec(Codec):
    """IEEE float16, widened."""

    encoding = e.F16

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        out[...] = blocks.view("<f2")


class Bf16Codec(Codec):
    """The upper 16 bits of a float32; NaN payloads stay."""

    encoding = e.BF16

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        bits = out.view(np.uint32)
        bits[...] = blocks.view("<u2")
        bits <<= 16
