"""Held plans: a step built, prepared and optimised once, then run for every token, only its data re-bound."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.decode.data import DecodeTokenData, data_by_node, shape_data, token_data
from ostinato.decode.kv_cache import KvCache, KvRebindSource
from ostinato.decode.rebind import RebindRefusal, StagedRebind, stage_rebind
from ostinato.decode.step import (
    ATTENDED_LEN,
    CACHED_LEN,
    OUT_ROWS,
    ROWS,
    StepGraph,
    build_step,
    placement_hints,
    slab_bindings,
    step_env,
)
from ostinato.decode.validity import PlanStructure, PlanValidity, differs
from ostinato.decode.want import LAST, Argmax, Hidden, Rows, Want, out_rows, shaped
from ostinato.device.traits import WritePath
from ostinato.errors.decode import CapacityExceeded, TokenDataMismatch
from ostinato.errors.device import DeviceMismatch
from ostinato.ir.dtype import DType
from ostinato.ir.location import Location
from ostinato.ir.shape import NodeId
from ostinato.ir.symbols import SymEnv, SymId
from ostinato.models.contract import LayerKv, Model, ShapeKey
from ostinato.plan.optimized import OptimizedGraph
from ostinato.runtime.compiled import BoundPlan, CompiledPlan
from ostinato.runtime.context import Bindings, InferenceContext
from ostinato.runtime.registry import Registry
from ostinato.runtime.storage_cache import StorageCache

Array = npt.NDArray[Any]


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
    """A step's graph and its compiled plan: no data, shared by all sessions of one structure."""

    step: StepGraph
    compiled: CompiledPlan


class PlanShelf:
    """The plans that slots share, made once for each structure, row bound, registry and topology of it.
    Thread-safe."""

    def __init__(self) -> None:
        self._plans: dict[tuple[PlanStructure, int, Registry, int], SharedPlan] = {}
        self._lock = threading.Lock()

    def get(
        self, structure: PlanStructure, max_rows: int, devices: Registry, build: Callable[[], SharedPlan]
    ) -> SharedPlan:
        """The plan, made by `build` where there is none yet; plans of older topologies are let go."""
        with self._lock:
            key = (structure, max_rows, devices, devices.generation)
            if key not in self._plans:
                shared = build()
                generation = shared.compiled.plan.generation
                self._plans = {k: plan for k, plan in self._plans.items() if k[2:] == (devices, generation)}
                self._plans[structure, max_rows, devices, generation] = shared
                return shared
            return self._plans[key]


@dataclass(frozen=True, slots=True)
class _Rebound:
    """A re-bind that has passed every check and has its bound plan: committing it can't fail."""

    staged: StagedRebind
    cache: StorageCache
    bound: BoundPlan


class HeldSession:
    """The held plan of one model, one cache geometry, one placement, for steps of up to `max_rows` rows.

    `base_cache` holds the weights, the KV slabs and the first step's data; a token's data overlays it and
    never changes it. `epoch` grows with every re-bind.
    """

    def __init__(
        self,
        context: InferenceContext,
        shared: SharedPlan,
        structure: PlanStructure,
        base_cache: StorageCache,
        alloc_id: int,
        max_rows: int,
    ) -> None:
        self._context = context
        self._shared = shared
        self.structure = structure
        self.base_cache = base_cache
        self.alloc_id = alloc_id
        self.max_rows = max_rows
        self.epoch = 0
        self._bound = self._bind(base_cache)

    @classmethod
    def build(
        cls,
        context: InferenceContext,
        model: Model,
        cache: KvCache,
        write_path: WritePath,
        max_rows: int,
        first: npt.NDArray[np.int64],
        shelf: PlanShelf,
    ) -> HeldSession:
        """Plan (or take from the shelf) and bind; `first` are the ids of the step at hand. Runs nothing."""
        structure = structure_of(model, cache, write_path, context.location)
        bounds = {ROWS: max_rows, OUT_ROWS: max_rows}

        def make() -> SharedPlan:
            step = build_step(model, cache.capacity, cache.dtype, write_path, cache.encodings())
            hints = placement_hints(step, model, cache)
            plan = context.plan(step.graph, step.roots, bounds=bounds, hints=hints)
            return SharedPlan(step, context.compile(plan))

        shared = shelf.get(structure, max_rows, context.devices, make)
        step = shared.step
        ids = first
        data = {
            **data_by_node(step, token_data(step, model, ids, cache.length)),
            **shape_data(step, len(ids), (len(ids) - 1,)),
        }
        bindings = Bindings(model.weights, slab_bindings(step, cache), data)
        env = step_env(cache.length, len(ids), 1)
        base = context.bind(shared.compiled.plan, bindings, env)
        return cls(context, shared, structure, base, cache.alloc_id, max_rows)

    def _bind(self, cache: StorageCache) -> BoundPlan:
        bounds = SymEnv({ROWS: self.max_rows, OUT_ROWS: self.max_rows})
        return self._shared.compiled.bind(cache.of_graph(self.step.graph.id), bounds)

    # what the plan is

    @property
    def step(self) -> StepGraph:
        """The source graph's nodes by what they mean."""
        return self._shared.step

    @property
    def compiled(self) -> CompiledPlan:
        return self._shared.compiled

    @property
    def optimized(self) -> OptimizedGraph:
        """The prepared, optimised graph, frozen; roots and data Consts have the source graph's ids."""
        return self._shared.compiled.plan

    graph = optimized

    @property
    def graph_node_count(self) -> int:
        """Nodes of the plan: never grows."""
        return len(self.optimized.nodes)

    @property
    def max_seq_len(self) -> int:
        return self.structure.max_seq_len

    @property
    def location(self) -> Location:
        """The device that runs what nothing ties to another."""
        return self._context.location

    @property
    def devices(self) -> Registry:
        """Those that it runs on: another registry's are others, whatever they are called."""
        return self._context.devices

    @property
    def logits_node(self) -> NodeId:
        """The logits on their device, before the Copy: what a capture reads."""
        return self.step.logits

    @property
    def effective_target(self) -> NodeId:
        """The spliced Copy of the logits."""
        return self.optimized.roots[0]

    @property
    def argmax_target(self) -> NodeId:
        """The spliced Copy of the argmax."""
        return self.optimized.roots[1]

    @property
    def token_ids_node(self) -> NodeId:
        return self.step.token_ids

    @property
    def rope_cos_node(self) -> NodeId:
        return self.step.rope_cos

    @property
    def rope_sin_node(self) -> NodeId:
        return self.step.rope_sin

    @property
    def mask_node(self) -> NodeId:
        return self.step.mask

    @property
    def kv_nodes(self) -> tuple[tuple[NodeId, NodeId], ...]:
        return self.step.slabs

    @property
    def offset_node(self) -> NodeId | None:
        """The `start` buffer; None on the symbolic path."""
        return self.step.start

    @property
    def cached_len_sym(self) -> SymId:
        return CACHED_LEN

    @property
    def attended_len_sym(self) -> SymId:
        return ATTENDED_LEN

    # whether it may serve

    def validity(self, structure: PlanStructure, alloc_id: int) -> PlanValidity:
        """Compare with what a request needs; a structural difference wins over the allocation."""
        for field in self.structure.differences(structure):
            return PlanValidity.stale(field)
        if differs("alloc_id", self.alloc_id, alloc_id):
            return PlanValidity.ALLOCATION_CHANGED
        return PlanValidity.VALID

    def stage_kv(self, source: KvRebindSource) -> _Rebound | RebindRefusal:
        """Check the source's slabs against the baked ones and bind them aside; this session stays."""
        baked = self.base_cache.of_graph(self.step.graph.id)
        staged = stage_rebind(source, self.step.slabs, baked)
        if isinstance(staged, RebindRefusal):
            return staged
        cache = StorageCache()
        for node, storage in {**baked, **staged.slabs}.items():
            cache.bind(self.step.graph.id, self.optimized.nodes[node], storage)
        return _Rebound(staged, cache, self._bind(cache))

    def commit_kv(self, rebound: _Rebound) -> None:
        """Take the staged slabs; assignments only."""
        self.base_cache = rebound.cache
        self._bound = rebound.bound
        self.alloc_id = rebound.staged.alloc_id
        self.epoch += 1

    def rebind_kv(self, source: KvRebindSource) -> RebindRefusal | None:
        """Exchange the slabs, all or none: None when it is done, else why it wasn't; nothing changed then."""
        rebound = self.stage_kv(source)
        if isinstance(rebound, RebindRefusal):
            return rebound
        self.commit_kv(rebound)
        return None

    # running

    def check_position(self, data: DecodeTokenData, env: SymEnv, count: int) -> None:
        """Raises CapacityExceeded or TokenDataMismatch before anything runs."""
        start = env[CACHED_LEN] if data.offset is None else data.offset
        if start < 0:
            raise TokenDataMismatch("offset", "at least 0", str(start))
        if start + count > self.max_seq_len:
            raise CapacityExceeded(start + count, self.max_seq_len)

    def _run(self, data: Mapping[NodeId, Array], env: SymEnv, want: Want) -> Any:
        # before the data goes up: its device may be gone
        self._context.devices.check_generation(self.optimized.generation)
        node = self.root_of(want)
        return shaped(want, self._context.realize_prebuilt(self._bound, data, env, [node])[node])

    def root_of(self, want: Want) -> NodeId:
        """The Copy that brings home what is wanted."""
        logits, argmax, hidden = self.optimized.roots
        return argmax if isinstance(want, Argmax) else hidden if isinstance(want, Hidden) else logits


def picked(want: Want, selected: Sequence[int], result: Any) -> Any:
    """Of the one row that a decode plan makes, the rows that `want` names."""
    return result[list(selected)] if isinstance(want, Rows) else result


class DecodeSession(HeldSession):
    """The held plan of the decode step: one row."""

    def validity_for(
        self,
        seq: int,
        max_seq_len: int,
        n_layers: int,
        cache_dtype: DType,
        shape_key: ShapeKey,
        alloc_id: int,
        *,
        kv_geometry: tuple[LayerKv, ...],
        location: tuple[Location, ...],
        write_path: WritePath,
    ) -> PlanValidity:
        """Whether this plan serves a step of `seq` rows over such a cache; `location` is the device that runs
        what nothing ties to another, then those of each layer's K and V."""
        if differs("seq", 1, seq):
            return PlanValidity.stale("seq")
        structure = PlanStructure(
            max_seq_len, n_layers, cache_dtype, shape_key, kv_geometry, location, write_path
        )
        return self.validity(structure, alloc_id)

    def is_valid_for(self, *args: Any, **kwargs: Any) -> bool:
        """`validity_for(...)` is VALID."""
        return self.validity_for(*args, **kwargs) is PlanValidity.VALID

    def per_token_sym_env(self, cached_len: int) -> SymEnv:
        """The symbols of a token at position `cached_len`; dead on the device_offset path."""
        return step_env(cached_len, 1, 1)

    def realize_token(
        self, device: Location, data: DecodeTokenData, sym_env: SymEnv, *, want: Want = LAST
    ) -> Any:
        """Run one token: logits float32 `[vocab]`, or what else `want` asks for; only its Copy is made.

        Raises DeviceMismatch, RowOutOfRange, CapacityExceeded, TokenDataMismatch, TopologyChanged before
        anything runs.
        """
        if device != self.location:
            raise DeviceMismatch("the session", str(device), str(self.location))
        selected = out_rows(want, 1)
        self.check_position(data, sym_env, 1)
        return picked(want, selected, self._run(data_by_node(self.step, data), sym_env, want))


class StepSession(HeldSession):
    """The held plan of steps of 1 … `max_rows` rows: prefill and verification."""

    def realize_rows(
        self, data: DecodeTokenData, env: SymEnv, count: int, selected: Sequence[int], want: Want
    ) -> Any:
        """Run `count` rows (the data may have more, padded ones); `selected` are those whose logits count."""
        self.check_position(data, env, count)
        nodes = {**data_by_node(self.step, data), **shape_data(self.step, count, selected)}
        return self._run(nodes, env, want)
