"""F32, F16 and BF16: one element, one number, little-endian; a "block" is one element.

BF16 is the upper half of a float32 (ggml's `ggml_bf16_t`), so decoding it is a shift. Decoding is exact in
all three; encoding rounds to nearest, halves to even, and what is too large becomes infinite.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.encodings.encoder import Encoder
from ostinato.ir import encoding as e


class F32Codec(Encoder):
    """IEEE 754 binary32, copied as it is."""

    encoding = e.F32

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        out[...] = blocks.view("<f4")

    def _encode_blocks(self, values: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
        out.view("<f4")[...] = values


class F16Codec(Encoder):
    """IEEE 754 binary16, widened."""

    encoding = e.F16

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        out[...] = blocks.view("<f2")

    def _encode_blocks(self, values: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
        out.view("<f2")[...] = values


class Bf16Codec(Encoder):
    """The upper 16 bits of a float32; NaN payloads stay, encoding makes them quiet."""

    encoding = e.BF16

    def _decode_blocks(self, blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        bits = out.view(np.uint32)
        bits[...] = blocks.view("<u2")
        bits <<= 16

    def _encode_blocks(self, values: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
        bits = values.view(np.uint32)
        upper = bits >> 16
        # ggml's `ggml_compute_fp32_to_bf16` (ggml-impl.h). A NaN that is rounded could become an infinity.
        rounded = (bits + (upper & 1) + np.uint32(0x7FFF)) >> 16
        out.view("<u2")[...] = np.where(np.isnan(values), upper | np.uint32(0x40), rounded)
