"""Held plans: a step built, prepared and optimised once, then run for every token, only its data re-bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ostinato.decode.data import DecodeTokenData, data_by_node, data_of_rows, shape_data
from ostinato.decode.kv_cache import KvCache, KvRebindSource
from ostinato.decode.rebind import RebindRefusal, StagedRebind, stage_rebind
from ostinato.decode.shelf import PlanShelf, SharedPlan, structure_of
from ostinato.decode.step import (
    ATTENDED_LEN,
    CACHED_LEN,
    OUT_ROWS,
    ROWS,
    slab_bindings,
    step_env,
)
from ostinato.decode.validity import PlanStructure, PlanValidity, differs
from ostinato.decode.want import (
    Argmax,
    Hidden,
    Result,
    Want,
    shaped,
)
from ostinato.device.storage import Storage
from ostinato.device.traits import WritePath
from ostinato.errors.decode import CapacityExceeded, TokenDataMismatch
from ostinato.ir.shape import NodeId
from ostinato.ir.symbols import SymEnv, SymId
from ostinato.models.contract import Model
from ostinato.runtime.compiled import BoundPlan
from ostinato.runtime.context import Bindings, InferenceContext
from ostinato.runtime.staging import Staging
from ostinato.runtime.storage_cache import StorageCache

Array = npt.NDArray[Any]
T = TypeVar("T")


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
        self.step = shared.step
        """The source graph's nodes by what they mean."""
        self.compiled = shared.compiled
        self.optimized = self.graph = shared.compiled.plan
        """The prepared, optimised graph, frozen; roots and data Consts have the source graph's ids."""
        self.ropes = shared.ropes
        """The model's."""
        self.location = context.location
        """The device that runs what nothing ties to another."""
        self.devices = context.devices
        """Those that it runs on: another registry's are others, whatever they are called."""
        self.structure = structure
        self.base_cache = base_cache
        self.alloc_id = alloc_id
        self.max_rows = max_rows
        self.epoch = 0
        self._bounds = SymEnv({ROWS: max_rows, OUT_ROWS: max_rows})
        self._bound = self._bind(base_cache)
        self._staging: Staging | None = None

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

        def make() -> SharedPlan:
            return SharedPlan.make(context, model, cache, write_path, max_rows)

        shared = shelf.get(structure, max_rows, context.devices, make)
        step, ids = shared.step, first
        data = {
            **data_by_node(step, data_of_rows(step, shared.ropes, ids, cache.length)),
            **shape_data(step, len(ids), (len(ids) - 1,)),
        }
        bindings = Bindings(model.weights, slab_bindings(step, cache), data)
        env = step_env(cache.length, len(ids), 1)
        base = context.bind(shared.compiled.plan, bindings, env)
        return cls(context, shared, structure, base, cache.alloc_id, max_rows)

    def _bind(self, cache: StorageCache) -> BoundPlan:
        return self.compiled.bind(cache.of_graph(self.step.graph.id), self._bounds)

    # what the plan is

    @property
    def graph_node_count(self) -> int:
        """Nodes of the plan: never grows."""
        return len(self.optimized.nodes)

    @property
    def max_seq_len(self) -> int:
        return self.structure.max_seq_len

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
        field = self.structure.first_difference(structure)
        if field is not None:
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

    def data_of(self, ids: npt.NDArray[np.int64], start: int) -> DecodeTokenData:
        """The data of rows `ids` that stand at positions start, start + 1, …"""
        return data_of_rows(self.step, self.ropes, ids, start)

    def _run(self, data: Mapping[NodeId, Array], env: SymEnv, want: Want) -> Result:
        root, bound = self.root_of(want), self._bound
        return shaped(want, self._ran(data, env, lambda: bound.fetch(root, env)))

    def _ran(self, data: Mapping[NodeId, Array], env: SymEnv, take: Callable[[], T]) -> T:
        """Run with this data, and what `take` makes of the results before the next run can touch them."""
        context, bound = self._context, self._bound
        # before the data goes up: its device may be gone
        context.devices.check_generation(self.optimized.generation)
        context.counters.mine.realize_calls += 1
        bound.enter()
        try:
            bound.run_entered(env, (), self._brought(data, env))
            return take()
        except BaseException:
            self._staging = None  # a run that broke off may still be reading it
            raise
        finally:
            bound.leave()

    def _brought(self, data: Mapping[NodeId, Array], env: SymEnv) -> Mapping[NodeId, Storage]:
        """This run's data on its devices."""
        return self._context.overlay(self.optimized, data, env)

    def root_of(self, want: Want) -> NodeId:
        """The Copy that brings home what is wanted."""
        logits, argmax, hidden = self.optimized.roots
        return argmax if isinstance(want, Argmax) else hidden if isinstance(want, Hidden) else logits
