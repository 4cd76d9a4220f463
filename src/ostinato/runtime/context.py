"""Realising graphs on the registered devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ostinato.device.contract import Device, HostArray, fitting
from ostinato.device.storage import Storage
from ostinato.errors.device import TopologyChanged
from ostinato.errors.graph import UnboundConst
from ostinato.ir.graph import Graph, Node
from ostinato.ir.location import Location
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.recipe import PackRecipe
from ostinato.ir.shape import NodeId, resolve
from ostinato.ir.symbols import SymEnv, SymId
from ostinato.plan.optimize import optimize
from ostinato.plan.optimized import OptimizedGraph
from ostinato.runtime.compiled import BoundPlan, CompiledPlan
from ostinato.runtime.counters import Counters
from ostinato.runtime.registry import Registry, registry
from ostinato.runtime.storage_cache import StorageCache
from ostinato.runtime.weights import WeightSet


@dataclass(frozen=True)
class Bindings:
    """What a pass binds to a graph's Consts: weights by name, slabs by node, and this step's data."""

    weights: WeightSet | None = None
    slabs: Mapping[NodeId, Storage] = field(default_factory=dict)
    data: Mapping[NodeId, HostArray] = field(default_factory=dict)


class InferenceContext:
    """Runs graphs. `location` ("reference" or "reference:1", or a Location) is where nodes go that nothing
    ties to a device; raises MalformedLocation or NoDevice.

    Results are new host arrays, the caller's own. A pass that fails advances nothing and leaves no
    binding behind.
    """

    def __init__(self, location: Location | str, devices: Registry = registry) -> None:
        self.location = Location.parse(location) if isinstance(location, str) else location
        devices.device(self.location)
        self.devices = devices
        self.counters = Counters()

    def realize(
        self,
        graph: Graph,
        roots: Sequence[NodeId],
        bindings: Bindings,
        env: SymEnv,
        *,
        wanted: Sequence[NodeId] | None = None,
        bounds: Mapping[SymId, int] | None = None,
        hints: Mapping[NodeId, Location] | None = None,
    ) -> list[HostArray]:
        """Prepare, optimise and run: the values of `roots` in order, or of those `wanted` alone.

        Without `bounds` the plan is made for the values in `env`. A topology that changes meanwhile costs
        a fresh plan. Raises what planning and the devices raise, UnboundConst, BindingMismatch.
        """
        bounds = dict(env) if bounds is None else bounds
        while True:
            try:
                plan = self.plan(graph, roots, bounds=bounds, hints=hints)
                cache = self.bind(plan, bindings, env)
                bound = self.compile(plan).bind(cache.of_graph(plan.graph_id), env)
                nodes = [
                    copy
                    for root, copy in zip(roots, plan.roots, strict=True)
                    if wanted is None or root in wanted
                ]
                results = self.realize_prebuilt(bound, {}, env, nodes)
                return [results[node] for node in nodes]
            except TopologyChanged:
                continue

    def plan(
        self,
        graph: Graph,
        roots: Sequence[NodeId],
        *,
        bounds: Mapping[SymId, int],
        hints: Mapping[NodeId, Location] | None = None,
    ) -> OptimizedGraph:
        """Prepare and optimise on the devices as they are now."""
        self.counters.mine.optimize_calls += 1
        topology = self.devices.snapshot()
        return optimize(graph, roots, topology, default=self.location, bounds=bounds, hints=hints)

    def compile(self, plan: OptimizedGraph) -> CompiledPlan:
        """Code for every segment of a plan; raises TopologyChanged when a device has gone."""
        return CompiledPlan.of(plan, self.devices)

    def prebuild(
        self,
        graph: Graph,
        roots: Sequence[NodeId],
        bindings: Bindings,
        env: SymEnv,
        *,
        bounds: Mapping[SymId, int] | None = None,
        hints: Mapping[NodeId, Location] | None = None,
    ) -> tuple[OptimizedGraph, StorageCache]:
        """A plan and every storage that it needs, without running it."""
        bounds = dict(env) if bounds is None else bounds
        while True:
            try:
                plan = self.plan(graph, roots, bounds=bounds, hints=hints)
                return plan, self.bind(plan, bindings, env)
            except TopologyChanged:
                continue

    def bind(self, plan: OptimizedGraph, bindings: Bindings, env: SymEnv) -> StorageCache:
        """A storage for each live Const of a plan: weights from their store, slabs as given, data uploaded.

        Raises TopologyChanged when a device has gone, UnboundConst, BindingMismatch.
        """
        self.devices.check_generation(plan.generation)
        self._fill(plan, bindings)
        cache = StorageCache()
        for node_id in plan.consts:
            node = plan.nodes[node_id]
            assert isinstance(node.op, Const)
            device = self.devices.device(plan.placement[node_id])
            storage = self._storage_for(node, node.op, device, bindings, env)
            cache.bind(plan.graph_id, node, storage)
            self.counters.mine.bytes_bound += storage.nbytes
        return cache

    def realize_prebuilt(
        self,
        bound: BoundPlan,
        data: Mapping[NodeId, HostArray],
        env: SymEnv,
        wanted: Sequence[NodeId],
    ) -> dict[NodeId, HostArray]:
        """Run a bound plan without preparing or optimising; the values of the `wanted` roots, by node.

        `data` takes the place of the bound data for this run alone: an error leaves no binding behind.
        Raises TopologyChanged before anything runs, UnboundConst, BindingMismatch, what the devices raise.
        """
        self.devices.check_generation(bound.compiled.plan.generation)  # before the data goes up
        self.counters.mine.realize_calls += 1
        return bound.run(env, wanted, self.overlay(bound.compiled.plan, data, env) if data else None)

    def overlay(
        self, plan: OptimizedGraph, data: Mapping[NodeId, HostArray], env: SymEnv
    ) -> dict[NodeId, Storage]:
        """This step's data, uploaded; what nothing reads is left where it is."""
        storages = {}
        for node_id, value in data.items():
            if node_id not in plan.nodes:  # dead data
                continue
            node = plan.nodes[node_id]
            assert isinstance(node.op, Const)
            device = self.devices.device(plan.placement[node_id])
            storages[node_id] = self._upload(node, node.op, device, value, env)
        return storages

    def _fill(self, plan: OptimizedGraph, bindings: Bindings) -> None:
        """Weights that were kept packed are found all at once."""
        if bindings.weights is None or not bindings.weights.kept:
            return
        recipes: dict[Location, list[PackRecipe]] = {}
        for node_id in plan.consts:
            op = plan.nodes[node_id].op
            if isinstance(op, Const) and op.recipe is not None:
                recipes.setdefault(plan.placement[node_id], []).append(op.recipe)
        for location, wanted in recipes.items():
            bindings.weights.store_on(self.devices.device(location)).fill(wanted)

    def _storage_for(
        self, node: Node, const: Const, device: Device, bindings: Bindings, env: SymEnv
    ) -> Storage:
        if const.role is ConstRole.DATA:
            if node.id not in bindings.data:
                raise UnboundConst(const.label, const.role.value)
            return self._upload(node, const, device, bindings.data[node.id], env)
        if const.role is ConstRole.SLAB:
            if node.id not in bindings.slabs:
                raise UnboundConst(const.label, const.role.value)
            return bindings.slabs[node.id]
        if bindings.weights is None or const.recipe is None:
            raise UnboundConst(const.label, const.role.value)
        return bindings.weights.store_on(device).get(const.recipe)

    def _upload(self, node: Node, const: Const, device: Device, value: HostArray, env: SymEnv) -> Storage:
        array = fitting(const.label, value, resolve(node.shape, env), const.dtype)
        self.counters.mine.bytes_uploaded += array.nbytes
        return device.upload(array, const.dtype)
