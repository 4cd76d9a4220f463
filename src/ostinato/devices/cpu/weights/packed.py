"""What a packed form of a weight is: bytes in exactly the order in which a product reads them.

A weight `[n, k]` is cut into groups of 16 rows, a lane for each; the last is filled up with rows of zeros.
Inside a group k advances in units, and a unit's bytes lie in the order that one pass over it loads them: with
a weight larger than the caches, 10 to 17% faster than with all scales at a unit's end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I64, PTR
from ostinato.devices.cpu.isa import Isa
from ostinato.ir.encoding import Encoding
from ostinato.ir.ops.quantize import Rounding

GROUP = 16
"""Rows of a group: lanes of the vectors that products add in."""


@dataclass(frozen=True)
class PackedForm(ABC):
    """One way to pack weights of the encoding `source`. Forms with equal names differ in their source alone:
    packed bytes and products are the same."""

    source: Encoding

    name: ClassVar[str]
    stored: ClassVar[Encoding]
    """The packed bytes' own encoding; one block is a unit of all 16 rows."""
    sums: ClassVar[bool] = False
    """Whether quantised rows have their sums of 16 as well (`rows.RowSpec.sums`)."""

    @property
    def reads(self) -> Encoding:
        """The encoding of the rows that packing takes: `source`, or F32 where a codec decodes them first."""
        return self.source

    @abstractmethod
    def rounding(self, isa: Isa) -> Rounding | None:
        """What activation rows go through before the product, None where they stay f32."""

    @abstractmethod
    def group_bytes(self, k: int) -> int:
        """Bytes of one group of 16 rows."""

    def packed_bytes(self, n: int, k: int) -> int:
        return groups(n) * self.group_bytes(k)

    @abstractmethod
    def dot(
        self, f: Function, isa: Isa, k: int, w: Value, rows: Sequence[Value], ahead: int = 0
    ) -> list[Value]:
        """The products of the group at `w` with prepared rows: 16 f32 sums for each row. A row's sums
        have the same bits however many others there are. `ahead`: how many bytes further weights are asked
        for meanwhile; 0 for none."""

    @abstractmethod
    def pack(self, f: Function, k: int, sources: Sources, out: Value) -> None:
        """Write the group at `out`, all of its bytes, from 16 rows encoded as `reads`."""

    @abstractmethod
    def unpack(self, f: Function, k: int, w: Value, lane: Value, out: Value) -> None:
        """Decode the row `lane` (i64) of the group at `w` to `k` f32, the same bits as the source's codec."""


def tile(isa: Isa) -> int:
    """Activation rows that a product takes at once, a power of two: sums, scales and weights are to stay in
    registers. With 16 of those, two rows are no slower than four and compile three times as fast."""
    return MOST if isa.has("avx512vnni") else 2


MOST = 4
"""The largest tile."""


def fetch(f: Function, weights: Value, nbytes: int, ahead: int) -> None:
    """Ask for `nbytes` of weights `ahead` of these, if that isn't 0: into L2, as L1 holds what is in use."""
    for line in range(0, nbytes if ahead else 0, 64):
        f.prefetch(weights, ahead + line, locality=2)


def groups(n: int) -> int:
    """Groups of `n` rows."""
    return -(-n // GROUP)


@dataclass(frozen=True, eq=False)
class Sources:
    """The rows of a group being packed: 16 addresses at `table`, 0 for a row of zeros, read at `zeros`."""

    f: Function
    table: Value
    zeros: Value
    """`ZEROS` bytes of zeros."""

    def row(self, lane: Value | int) -> tuple[Value, Value]:
        """A row's address, and 1, or 0 for a row of zeros: offsets into the row are multiplied by it."""
        at = lane * 8 if isinstance(lane, int) else lane << 3
        address = self.f.load(I64, self.table, at)
        there = address.ne(0)
        return there.select(address.cast("inttoptr", PTR), self.zeros), there.cast("zext", I64)


ZEROS = 256
