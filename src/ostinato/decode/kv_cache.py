"""The keys and values of one sequence."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Protocol

from ostinato.device.storage import Storage
from ostinato.errors.decode import CacheMismatch, CapacityExceeded, InvalidTruncation
from ostinato.ir import encoding as enc
from ostinato.ir.encoding import Encoding
from ostinato.ir.location import Location
from ostinato.models.contract import LayerKv, Model
from ostinato.runtime.context import InferenceContext

_alloc_ids = itertools.count(1)

Slabs = tuple[Storage, Storage]


class KvRebindSource(Protocol):
    """What a held plan may be re-bound to."""

    @property
    def alloc_id(self) -> int: ...
    def rebind_location(self) -> Location | None:
        """Where all slabs live; None when that can't be told."""

    def rebind_slot(self, layer: int, index: int) -> Storage | None:
        """The K (0) or V (1) slab of a layer."""


class KvCache:
    """Per-layer K and V slabs, logical shape `[1, kv_heads, capacity, head_dim]`, and how many positions
    of them are attended. `dtype` is what keys and values are rounded to: F16, F32 or Q8_0.

    `alloc_id` names the allocation: `truncate_to` keeps it; `clear` and `set_layer` mint a new one. Ids are
    never reused. `length` advances only when a step has succeeded.
    """

    def __init__(
        self, geometry: Sequence[LayerKv], capacity: int, dtype: Encoding, slabs: Sequence[Slabs]
    ) -> None:
        self.geometry = tuple(geometry)
        self.capacity = capacity
        self.dtype = dtype
        self.alloc_id = next(_alloc_ids)
        self._slabs = list(slabs)
        self._length = 0

    @classmethod
    def allocate(
        cls,
        model: Model,
        context: InferenceContext,
        capacity: int,
        dtype: Encoding = enc.F32,
        *,
        locations: Sequence[Location] | None = None,
    ) -> KvCache:
        """Empty slabs for `capacity` positions, on the context's device or, with `locations`, on one device a
        layer. Memory is touched only as positions are written."""
        if capacity < 1:
            raise CapacityExceeded(1, capacity)
        geometry = model.config.kv
        places = locations or (context.location,) * len(geometry)
        if len(places) != len(geometry):
            raise CacheMismatch("locations", f"{len(geometry)} layers", f"{len(places)}")
        slabs = []
        for layer, location in zip(geometry, places, strict=True):
            device = context.devices.device(location)
            k, v = slab_shapes(layer, capacity)
            slabs.append((device.allocate_slab(k, dtype, "k"), device.allocate_slab(v, dtype, "v")))
        return cls(geometry, capacity, dtype, slabs)

    @property
    def length(self) -> int:
        """Positions written and attended."""
        return self._length

    @property
    def nbytes(self) -> int:
        """Bytes of all slabs, touched or not."""
        return sum(k.nbytes + v.nbytes for k, v in self._slabs)

    def slabs(self, layer: int) -> Slabs:
        """(K, V) of a layer."""
        return self._slabs[layer]

    def locations(self) -> tuple[tuple[Location, Location], ...]:
        """The devices of each layer's K and V."""
        return tuple((k.location, v.location) for k, v in self._slabs)

    def encodings(self) -> tuple[tuple[Encoding, Encoding], ...]:
        """How each layer's K and V are stored."""
        return tuple((k.encoding, v.encoding) for k, v in self._slabs)

    def check_room(self, count: int) -> None:
        """Raises CapacityExceeded unless `count` more positions fit."""
        if self._length + operator.index(count) > self.capacity:
            raise CapacityExceeded(self._length + count, self.capacity)

    def advance(self, count: int) -> None:
        """`count` positions were written by a step that succeeded."""
        if count < 0:
            raise InvalidTruncation(self._length + count, self._length)
        self.check_room(count)
        self._length += count

    def truncate_to(self, length: int) -> None:
        """Forget the positions from `length` on; the allocation stays the same."""
        if not 0 <= operator.index(length) <= self._length:
            raise InvalidTruncation(length, self._length)
        self._length = operator.index(length)

    def clear(self) -> None:
        """Forget everything; from here on this is another allocation."""
        self._length = 0
        self.alloc_id = next(_alloc_ids)

    def set_layer(self, layer: int, k: Storage, v: Storage) -> None:
        """Put other slabs in a layer's place; from here on this is another allocation.

        Raises CacheMismatch for slabs that aren't like those they replace; nothing changes then.
        """
        if not 0 <= layer < len(self._slabs):
            raise CacheMismatch("layer", f"0 … {len(self._slabs) - 1}", str(layer))
        for name, old, new in zip("KV", self._slabs[layer], (k, v), strict=True):
            for field in ("dtype", "encoding", "bundling", "nbytes"):
                mine, theirs = getattr(old, field), getattr(new, field)
                if mine != theirs:
                    raise CacheMismatch(f"layer {layer} {name} {field}", str(mine), str(theirs))
        self._slabs[layer] = (k, v)
        self.alloc_id = next(_alloc_ids)

    def rebind_location(self) -> Location | None:
        places = {place for pair in self.locations() for place in pair}
        return places.pop() if len(places) == 1 else None

    def rebind_slot(self, layer: int, index: int) -> Storage | None:
        inside = 0 <= layer < len(self._slabs) and index in (0, 1)
        return self._slabs[layer][index] if inside else None


def slab_shapes(layer: LayerKv, capacity: int) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
    """K `[1, kv_heads, capacity, k_dim]` and V `[1, kv_heads, capacity, v_dim]`."""
    return (1, layer.kv_heads, capacity, layer.k_dim), (1, layer.kv_heads, capacity, layer.v_dim)
