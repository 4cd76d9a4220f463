"""Whether a held plan may serve a request: one list of comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from typing import ClassVar

from ostinato.device.traits import WritePath
from ostinato.ir.encoding import Encoding
from ostinato.ir.location import Location
from ostinato.models.contract import LayerKv, ShapeKey


class Verdict(Enum):
    VALID = "valid"
    ALLOCATION_CHANGED = "allocation changed"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class PlanValidity:
    """VALID · ALLOCATION_CHANGED: everything else matches, a re-bind is worth *attempting* · STALE: `field`
    names the first structural difference, which wins over the allocation."""

    verdict: Verdict
    field: str | None = None

    VALID: ClassVar[PlanValidity]
    ALLOCATION_CHANGED: ClassVar[PlanValidity]

    @classmethod
    def stale(cls, field: str) -> PlanValidity:
        return cls(Verdict.STALE, field)

    def __str__(self) -> str:
        return self.verdict.value if self.field is None else f"{self.verdict.value}: {self.field}"


PlanValidity.VALID = PlanValidity(Verdict.VALID)
PlanValidity.ALLOCATION_CHANGED = PlanValidity(Verdict.ALLOCATION_CHANGED)


@dataclass(frozen=True, slots=True)
class PlanStructure:
    """Everything of a plan but the allocation that it is bound to; compared field by field, in this order.

    `locations` are the device that runs what nothing ties to another, then those of each layer's K and V.
    """

    max_seq_len: int
    n_layers: int
    cache_dtype: Encoding
    shape_key: ShapeKey
    kv_geometry: tuple[LayerKv, ...]
    locations: tuple[Location, ...]
    write_path: WritePath

    def first_difference(self, other: PlanStructure) -> str | None:
        """The name of the first field that differs; the same object has none."""
        return None if self is other else next(self.differences(other), None)

    def differences(self, other: PlanStructure) -> Iterator[str]:
        """The names of the fields that differ."""
        for field in fields(self):
            if differs(field.name, getattr(self, field.name), getattr(other, field.name)):
                yield field.name


def differs(field: str, mine: object, theirs: object) -> bool:
    """The comparison of one field."""
    return mine != theirs
