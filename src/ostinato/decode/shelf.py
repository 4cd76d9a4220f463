"""Plans without data, shared by all sessions of one structure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ostinato.decode.kv_cache import KvCache
from ostinato.decode.step import OUT_ROWS, ROWS, StepGraph, build_step, placement_hints
from ostinato.decode.validity import PlanStructure
from ostinato.device.traits import WritePath
from ostinato.ir.location import Location
from ostinato.models.contract import Model
from ostinato.models.rope import RopeTable, rope_table
from ostinato.runtime.compiled import CompiledPlan
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry


def structure_of(model: Model, cache: KvCache, write_path: WritePath, home: Location) -> PlanStructure:
    """What a plan for this model and cache is keyed by, the allocation aside. `home`, a context's location,
    runs what nothing ties to another device."""
    places = tuple(place for pair in cache.locations() for place in pair)
    return PlanStructure(
        max_seq_len=cache.capacity,
        n_layers=len(cache.geometry),
        cache_dtype=cache.dtype,
        shape_key=model.shape_key,
        kv_geometry=cache.geometry,
        locations=(home, *places),
        write_path=write_path,
    )


@dataclass(frozen=True, eq=False)
class SharedPlan:
    """A step's graph, its compiled plan, and the rope rows of its positions."""

    step: StepGraph
    compiled: CompiledPlan
    ropes: RopeTable

    @classmethod
    def make(
        cls, context: InferenceContext, model: Model, cache: KvCache, write_path: WritePath, max_rows: int
    ) -> SharedPlan:
        """Build, plan and compile the step of up to `max_rows` rows."""
        step = build_step(model, cache.capacity, cache.dtype, write_path, cache.encodings())
        bounds = {ROWS: max_rows, OUT_ROWS: max_rows}
        hints = placement_hints(step, model, cache)
        plan = context.plan(step.graph, step.roots, bounds=bounds, hints=hints)
        return cls(step, context.compile(plan), rope_table(model.config.ropes))


class PlanShelf:
    """The plans that slots share, made once for each structure, row bound, registry and topology of it.
    Thread-safe."""

    def __init__(self) -> None:
        self._plans: dict[tuple[PlanStructure, int, Registry, int], SharedPlan] = {}
        self._lock = threading.Lock()

    def get(
        self, structure: PlanStructure, max_rows: int, devices: Registry, make: Callable[[], SharedPlan]
    ) -> SharedPlan:
        """The plan, made by `make` where there is none yet; plans of older topologies are let go."""
        with self._lock:
            key = (structure, max_rows, devices, devices.generation)
            if key not in self._plans:
                shared = make()
                generation = shared.compiled.plan.generation
                self._plans = {k: plan for k, plan in self._plans.items() if k[2:] == (devices, generation)}
                self._plans[structure, max_rows, devices, generation] = shared
                return shared
            return self._plans[key]
