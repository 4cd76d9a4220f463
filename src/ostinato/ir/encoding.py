"""How a tensor's bytes lie: an encoding's identity and block size. Codecs live in `formats.encodings`."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Encoding:
    """Identity of a block format: `block` consecutive elements of a row take `block_bytes` bytes.

    Names are ggml's type names; plain types are blocks of one element.
    """

    name: str
    block: int
    block_bytes: int

    @property
    def bits(self) -> float:
        """Bits per element, scales included."""
        return self.block_bytes * 8 / self.block

    @property
    def is_plain(self) -> bool:
        """One element, one block: no scales."""
        return self.block == 1

    def row_bytes(self, elements: int) -> int:
        """Bytes of one row; `elements` must be a multiple of `block`."""
        if elements % self.block:
            raise ValueError(f"{elements} elements are no multiple of the {self.name} block of {self.block}")
        return elements // self.block * self.block_bytes

    def __str__(self) -> str:
        return self.name


F32 = Encoding("F32", 1, 4)
F16 = Encoding("F16", 1, 2)
BF16 = Encoding("BF16", 1, 2)
F64 = Encoding("F64", 1, 8)
I8 = Encoding("I8", 1, 1)
I16 = Encoding("I16", 1, 2)
I32 = Encoding("I32", 1, 4)
I64 = Encoding("I64", 1, 8)
BOOL = Encoding("BOOL", 1, 1)

_PLAIN = {DType.F32: F32, DType.F16: F16, DType.I64: I64, DType.BOOL: BOOL}


def plain(dtype: DType) -> Encoding:
    """The encoding that stores `dtype` element by element."""
    return _PLAIN[dtype]


def element(encoding: Encoding) -> DType:
    """The type of what is stored so: its own where that is plain, float32 where blocks are decoded."""
    return next((dtype for dtype, known in _PLAIN.items() if known == encoding), DType.F32)


# ggml's block formats, sizes as its block structs in ggml-common.h have them.
# One scale a block of 32; _1 has a minimum as well.
Q4_0 = Encoding("Q4_0", 32, 18)
Q4_1 = Encoding("Q4_1", 32, 20)
Q5_0 = Encoding("Q5_0", 32, 22)
Q5_1 = Encoding("Q5_1", 32, 24)
Q8_0 = Encoding("Q8_0", 32, 34)
Q8_1 = Encoding("Q8_1", 32, 36)  # two f16 and 32 int8; the gguf package still has the older 40
Q1_0 = Encoding("Q1_0", 128, 18)
Q2_0 = Encoding("Q2_0", 64, 18)

# Super-blocks of 256 with scales of their own for each group of 16 or 32.
Q2_K = Encoding("Q2_K", 256, 84)
Q3_K = Encoding("Q3_K", 256, 110)
Q4_K = Encoding("Q4_K", 256, 144)
Q5_K = Encoding("Q5_K", 256, 176)
Q6_K = Encoding("Q6_K", 256, 210)
Q8_K = Encoding("Q8_K", 256, 292)

# Codebook formats: the bits index a grid of values.
IQ1_S = Encoding("IQ1_S", 256, 50)
IQ1_M = Encoding("IQ1_M", 256, 56)
IQ2_XXS = Encoding("IQ2_XXS", 256, 66)
IQ2_XS = Encoding("IQ2_XS", 256, 74)
IQ2_S = Encoding("IQ2_S", 256, 82)
IQ3_XXS = Encoding("IQ3_XXS", 256, 98)
IQ3_S = Encoding("IQ3_S", 256, 110)
IQ4_NL = Encoding("IQ4_NL", 32, 18)
IQ4_XS = Encoding("IQ4_XS", 256, 136)

# Ternary, and four-bit floats under a shared exponent.
TQ1_0 = Encoding("TQ1_0", 256, 54)
TQ2_0 = Encoding("TQ2_0", 256, 66)
MXFP4 = Encoding("MXFP4", 32, 17)
NVFP4 = Encoding("NVFP4", 64, 36)
