"""What an attention kernel works on at a time, and what it leaves of it."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import LANES
from ostinato.devices.cpu.slabs import SlabGeometry

SPAN = 128
"""Positions of a span; a multiple of a K block's."""

LOG2_E = 1.4426950408889634
LOWEST = -3.4028234663852886e38
"""The least finite float32: the largest score of no scores, so that -inf less it is -inf."""


@dataclass(frozen=True)
class SpanShape:
    """`rows` query rows of `group` heads each: vector n is head n % group of row n // group.

    A record is `[vectors][width]` float32 of summed values, then the largest scores and the sums of weights,
    each `[vectors rounded up to 16]`.
    """

    rows: int
    group: int
    k: SlabGeometry
    v: SlabGeometry
    windowed: bool
    masked: bool

    @property
    def vectors(self) -> int:
        return self.rows * self.group

    @property
    def lanes(self) -> int:
        """Vectors, rounded up to whole machine vectors."""
        return -(-self.vectors // LANES) * LANES

    @property
    def columns(self) -> int:
        """Machine vectors of a V row."""
        return -(-self.v.dim // LANES)

    @property
    def width(self) -> int:
        """Summed values of a vector."""
        return self.columns * LANES

    @property
    def weights_pitch(self) -> int:
        """Bytes from one vector's weights to the next's: `SPAN`, and that for each of V's scales."""
        return max(1, self.v.scales) * SPAN * 4

    @property
    def q_pitch(self) -> int:
        """Bytes from one query vector to the next."""
        return -(-self.k.dim // LANES) * LANES * 4

    @property
    def values_bytes(self) -> int:
        return self.vectors * self.width * 4

    @property
    def record_bytes(self) -> int:
        return self.values_bytes + 2 * self.lanes * 4


@dataclass(frozen=True)
class Attended:
    """What one row attends: positions low … high - 1, of them those that its mask row, if any, leaves."""

    low: Value
    high: Value
    mask: Value | None = None

    def within(self, f: Function, first: Value) -> Attended:
        """Its part of the span that starts at `first`; empty ranges stay ranges."""
        low = self.low.max(first).min(first + SPAN)
        return Attended(low, self.high.min(first + SPAN).max(low), self.mask)


def spans_of(row: Attended) -> tuple[Value, Value]:
    """The first span in which a row attends something, and the one after the last."""
    past = (row.high + (SPAN - 1)) // SPAN
    return row.low // SPAN, row.low.lt(row.high).select(past, 0)
