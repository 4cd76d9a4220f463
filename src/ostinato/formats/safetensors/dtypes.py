"""The dtype names of the safetensors format: their sizes, and the encodings of those that hold weights."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ostinato.ir import encoding as e

# name -> bits of an element; `enum Dtype` in the format's reference implementation
BITS: Mapping[str, int] = MappingProxyType(
    {
        "F4": 4,
        "F6_E2M3": 6,
        "F6_E3M2": 6,
        **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
        **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
        **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
        **dict.fromkeys(("I32", "U32", "F32"), 32),
        **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    }
)

# Tensors of other dtypes are listed, and refused when their data is asked for.
WEIGHT_ENCODINGS: Mapping[str, e.Encoding] = MappingProxyType({"F32": e.F32, "F16": e.F16, "BF16": e.BF16})
