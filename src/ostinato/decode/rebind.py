"""Exchanging the KV slabs under a held plan: staged slot by slot against what is baked, then committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ostinato.decode.kv_cache import KvRebindSource
from ostinato.device.storage import Storage
from ostinato.ir.location import Location
from ostinato.ir.shape import NodeId


class RefusalReason(Enum):
    RESIDENCY_UNKNOWN = "residency unknown"
    RESIDENCY_DIFFERS = "residency differs"
    MISSING_SLOT = "missing slot"
    UNBAKED_SLOT = "unbaked slot"
    STORAGE_DIFFERS = "storage differs"


@dataclass(frozen=True, slots=True)
class RebindRefusal:
    """Why slabs can't take the place of the baked ones. `layer` and `index` (K is 0, V is 1) name the first
    slot at fault, `field` what differs there."""

    reason: RefusalReason
    layer: int | None = None
    index: int | None = None
    field: str | None = None

    def __str__(self) -> str:
        where = "" if self.layer is None else f" in layer {self.layer} {'KV'[self.index or 0]}"
        return f"{self.reason.value}{where}" + ("" if self.field is None else f": {self.field}")


@dataclass(frozen=True, slots=True)
class StagedRebind:
    """Slabs that passed every check, not yet bound."""

    alloc_id: int
    slabs: Mapping[NodeId, Storage]


def stage_rebind(
    source: KvRebindSource,
    nodes: Sequence[tuple[NodeId, NodeId]],
    baked: Mapping[NodeId, Storage],
) -> StagedRebind | RebindRefusal:
    """Compare each of the source's slabs with the one that is baked; changes nothing.

    The comparison is with the baked storages themselves, not with any object's description of them.
    Structure is not checked again.
    """
    location = source.rebind_location()
    if residency_unknown(location):
        return RebindRefusal(RefusalReason.RESIDENCY_UNKNOWN)
    slabs: dict[NodeId, Storage] = {}
    for layer, pair in enumerate(nodes):
        for index, node in enumerate(pair):
            held, offered = baked.get(node), source.rebind_slot(layer, index)
            if held is None:
                return RebindRefusal(RefusalReason.UNBAKED_SLOT, layer, index)
            if offered is None:
                return RebindRefusal(RefusalReason.MISSING_SLOT, layer, index)
            if residency_differs(location, held, offered):
                return RebindRefusal(RefusalReason.RESIDENCY_DIFFERS, layer, index)
            if (field := storage_difference(held, offered)) is not None:
                return RebindRefusal(RefusalReason.STORAGE_DIFFERS, layer, index, field)
            slabs[node] = offered
    return StagedRebind(source.alloc_id, slabs)


def residency_unknown(location: Location | None) -> bool:
    """A source that can't tell where its slabs are can't prove that they are where the plan runs."""
    return location is None


def residency_differs(location: Location | None, held: Storage, offered: Storage) -> bool:
    """The offered slab is on the baked one's device, and where its source says."""
    return offered.location != held.location or offered.location != location


def storage_difference(held: Storage, offered: Storage) -> str | None:
    """The first of dtype, encoding, parts and byte extent (part by part) in which two storages differ."""
    for field in ("dtype", "encoding", "bundling"):
        if getattr(held, field) != getattr(offered, field):
            return field
    extents = [[part.nbytes for part in storage.parts] for storage in (held, offered)]
    return None if extents[0] == extents[1] else "nbytes"
