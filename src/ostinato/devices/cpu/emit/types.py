"""The machine types that kernels are written in."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_BYTES = {
    "float": 4,
    "half": 2,
    "bfloat": 2,
    "double": 8,
    "i8": 1,
    "i16": 2,
    "i32": 4,
    "i64": 8,
    "ptr": 8,
    "i1": 1,
}
_SHORT = {"float": "f32", "half": "f16", "bfloat": "bf16", "double": "f64"}


@dataclass(frozen=True, slots=True)
class Type:
    """An element type, or a vector of `lanes` of them (0: a scalar)."""

    element: str
    lanes: int = 0

    @classmethod
    def of(cls, text: str) -> Type:
        """The type that IR writes so."""
        lanes, _, element = text.strip("<>").rpartition(" x ")
        return cls(element, int(lanes or 0))

    def x(self, lanes: int) -> Type:
        """A vector of this element; 0 lanes are a scalar."""
        return Type(self.element, lanes)

    @property
    def scalar(self) -> Type:
        return Type(self.element)

    @property
    def is_float(self) -> bool:
        return self.element in _SHORT

    @property
    def nbytes(self) -> int:
        return _BYTES[self.element] * max(1, self.lanes)

    @property
    def align(self) -> int:
        """What every load and store of this type may count on: its element's own alignment."""
        return _BYTES[self.element]

    @property
    def suffix(self) -> str:
        """As LLVM's overloaded intrinsics spell it: `v16f32`."""
        short = _SHORT.get(self.element, self.element)
        return f"v{self.lanes}{short}" if self.lanes else short

    def literal(self, value: float) -> str:
        """A constant of this type, the same in every lane."""
        text = _float_literal(self.element, value) if self.is_float else str(int(value))
        return f"splat ({self.element} {text})" if self.lanes else text

    def __str__(self) -> str:
        return f"<{self.lanes} x {self.element}>" if self.lanes else self.element


def _float_literal(element: str, value: float) -> str:
    if element == "half":
        return f"0xH{struct.unpack('H', struct.pack('e', value))[0]:04X}"
    if element == "bfloat":
        return f"0xR{struct.unpack('I', struct.pack('f', value))[0] >> 16:04X}"
    if element == "float":  # LLVM writes a float as the double of the same value
        value = struct.unpack("f", struct.pack("f", value))[0]
    return f"0x{struct.unpack('Q', struct.pack('d', value))[0]:016X}"


F32, F16, BF16, F64 = Type("float"), Type("half"), Type("bfloat"), Type("double")
I1, I8, I16, I32, I64 = Type("i1"), Type("i8"), Type("i16"), Type("i32"), Type("i64")
PTR = Type("ptr")
VOID = Type("void")

LANES = 16
"""Lanes of the vectors that kernels compute with. Instruction sets with narrower registers get them split by
LLVM, so that every set adds in the same order."""
F32V, I32V = F32.x(LANES), I32.x(LANES)
