"""The numbers that a GGUF tensor directory uses for encodings: ggml's `enum ggml_type`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ostinato.ir import encoding as e

# Gaps (4, 5, 31-33, 36-38) are formats that ggml has removed; no file with them can be read any more.
TENSOR_TYPES: Mapping[int, e.Encoding] = MappingProxyType(
    {
        0: e.F32,
        1: e.F16,
        2: e.Q4_0,
        3: e.Q4_1,
        6: e.Q5_0,
        7: e.Q5_1,
        8: e.Q8_0,
        9: e.Q8_1,
        10: e.Q2_K,
        11: e.Q3_K,
        12: e.Q4_K,
        13: e.Q5_K,
        14: e.Q6_K,
        15: e.Q8_K,
        16: e.IQ2_XXS,
        17: e.IQ2_XS,
        18: e.IQ3_XXS,
        19: e.IQ1_S,
        20: e.IQ4_NL,
        21: e.IQ3_S,
        22: e.IQ2_S,
        23: e.IQ4_XS,
        24: e.I8,
        25: e.I16,
        26: e.I32,
        27: e.I64,
        28: e.F64,
        29: e.IQ1_M,
        30: e.BF16,
        34: e.TQ1_0,
        35: e.TQ2_0,
        39: e.MXFP4,
        40: e.NVFP4,
        41: e.Q1_0,
        42: e.Q2_0,
    }
)
