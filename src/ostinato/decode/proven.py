"""Whether a request is about the very things that the last one was about."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.decode.kv_cache import KvCache
from ostinato.decode.validity import PlanStructure
from ostinato.device.traits import WritePath
from ostinato.ir.encoding import Encoding
from ostinato.ir.location import Location
from ostinato.models.contract import Family, FamilyConfig, LayerKv, Model
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry


@dataclass(frozen=True, slots=True, eq=False)
class ProvenRequest:
    """A request whose cache was found to fit its model, and the structure that plans for it have. What that
    depends on is immutable or has an identity that is never reused, so a request about the same things needs
    no second look: comparing geometries layer by layer costs more than the rest of a token's way to its plan.
    """

    family: Family
    config: FamilyConfig
    weight_set: int
    geometry: tuple[LayerKv, ...]
    capacity: int
    dtype: Encoding
    alloc_id: int
    home: Location
    devices: Registry
    generation: int
    write_path: WritePath | None
    """The one that was asked for; `structure` has the one taken."""
    structure: PlanStructure

    @classmethod
    def of(
        cls,
        model: Model,
        cache: KvCache,
        context: InferenceContext,
        write_path: WritePath | None,
        structure: PlanStructure,
    ) -> ProvenRequest:
        return cls(
            model.family, model.config, model.weights.id,
            cache.geometry, cache.capacity, cache.dtype, cache.alloc_id,
            context.location, context.devices, context.devices.generation,
            write_path, structure,
        )  # fmt: skip

    def covers(
        self, model: Model, cache: KvCache, context: InferenceContext, write_path: WritePath | None
    ) -> bool:
        """Whether a request about these is the one that was proven."""
        return (
            self.alloc_id == cache.alloc_id
            and self.weight_set == model.weights.id
            and self.config is model.config
            and self.family is model.family
            and self.geometry is cache.geometry
            and self.capacity == cache.capacity
            and self.dtype is cache.dtype
            and self.home is context.location
            and self.devices is context.devices
            and self.generation == context.devices.generation
            and self.write_path is write_path
        )
