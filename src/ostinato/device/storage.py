"""Bytes on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding
from ostinato.ir.location import Location


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One buffer of a storage: what it holds (`role`), its bytes, and the device's own handle to them."""

    role: str
    nbytes: int
    data: Any


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """The bytes of one slot. Equal only to itself: two storages of the same bytes are not the same memory."""

    location: Location
    dtype: DType
    encoding: Encoding
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def bundling(self) -> tuple[str, ...]:
        """The roles of the parts in order; with their number, what a re-bind compares."""
        return tuple(part.role for part in self.parts)
