"""Realising graphs on the registered devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ostinato.device.contract import Device, HostArray, array_of
from ostinato.device.segment import Segment, Slot
from ostinato.device.storage import Storage
from ostinato.errors.device import TopologyChanged
from ostinato.errors.graph import BindingMismatch, UnboundConst
from ostinato.ir.graph import Graph, Node
from ostinato.ir.location import HOST, Location
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.shape import NodeId, elements, resolve
from ostinato.ir.symbols import SymEnv, SymId
from ostinato.plan.optimize import optimize
from ostinato.plan.optimized import CopyStep, OptimizedGraph
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
    ties to a device; raises NoDevice.

    Results are new host arrays, the caller's own. A pass that fails advances nothing and leaves no
    binding behind.
    """

    def __init__(self, location: Location | str, devices: Registry = registry) -> None:
        self.location = Location.parse(location) if isinstance(location, str) else location
        devices.device(self.location)
        self.devices = devices

    def realize(
        self,
        graph: Graph,
        roots: Sequence[NodeId],
        bindings: Bindings,
        env: SymEnv,
        *,
        bounds: Mapping[SymId, int] | None = None,
        hints: Mapping[NodeId, Location] | None = None,
    ) -> list[HostArray]:
        """Prepare, optimise and run: the values of `roots`, in order.

        Without `bounds` the plan is made for the values in `env`. A topology that changes meanwhile costs
        a fresh plan. Raises what planning and the devices raise, UnboundConst, BindingMismatch.
        """
        while True:
            plan = optimize(
                graph,
                roots,
                self.devices.snapshot(),
                default=self.location,
                bounds=dict(env) if bounds is None else bounds,
                hints=hints,
            )
            try:
                return self._run(plan, self._bind(plan, bindings, env), env)
            except TopologyChanged:
                continue

    def _bind(self, plan: OptimizedGraph, bindings: Bindings, env: SymEnv) -> StorageCache:
        cache = StorageCache()
        for node_id in plan.consts:
            node = plan.nodes[node_id]
            assert isinstance(node.op, Const)
            device = self.devices.device(plan.placement[node_id])
            cache.bind(plan.graph_id, node, _storage_for(node, node.op, device, bindings, env))
        return cache

    def _run(self, plan: OptimizedGraph, cache: StorageCache, env: SymEnv) -> list[HostArray]:
        check_generation(plan, self.devices.generation)
        values = dict(cache.of_graph(plan.graph_id))
        values.update({write: values[slab] for write, slab in plan.aliases.items()})
        results: dict[NodeId, HostArray] = {}
        for step in plan.steps:
            if isinstance(step, Segment):
                values.update(self._run_segment(step, values, env))
            elif step.target == HOST:
                results[step.node] = self._fetch(plan, step, values, env)
            else:
                node = plan.nodes[step.source]
                host = self._fetch(plan, step, values, env)
                values[step.node] = self.devices.device(step.target).upload(host, node.dtype)
        return [results[root] for root in plan.roots]

    def _run_segment(
        self, segment: Segment, values: Mapping[NodeId, Storage], env: SymEnv
    ) -> dict[NodeId, Storage]:
        device = self.devices.device(segment.location)
        program = device.compile(segment)
        outputs = {slot.node: _room(device, slot, env) for slot in segment.outputs}
        slots = {slot.node: values[slot.node] for slot in segment.inputs}
        program.bind(slots, program.workspace(), outputs).run(env).wait()
        return outputs

    def _fetch(
        self, plan: OptimizedGraph, step: CopyStep, values: Mapping[NodeId, Storage], env: SymEnv
    ) -> HostArray:
        shape = resolve(plan.nodes[step.source].shape, env)
        return self.devices.device(step.origin).download(values[step.source], shape)


def check_generation(plan: OptimizedGraph, current: int) -> None:
    """Raises TopologyChanged when devices came or went since `plan` was made."""
    if plan.generation != current:
        raise TopologyChanged(plan.generation, current)


def _room(device: Device, slot: Slot, env: SymEnv) -> Storage:
    return device.allocate(elements(slot.shape, env), slot.dtype, slot.encoding)


def _storage_for(node: Node, const: Const, device: Device, bindings: Bindings, env: SymEnv) -> Storage:
    if const.role is ConstRole.DATA:
        if node.id not in bindings.data:
            raise UnboundConst(const.label, const.role.value)
        return device.upload(_checked(const, bindings.data[node.id], resolve(node.shape, env)), const.dtype)
    if const.role is ConstRole.SLAB:
        if node.id not in bindings.slabs:
            raise UnboundConst(const.label, const.role.value)
        return bindings.slabs[node.id]
    if bindings.weights is None or const.recipe is None:
        raise UnboundConst(const.label, const.role.value)
    return bindings.weights.store_on(device).get(const.recipe)


def _checked(const: Const, data: HostArray, shape: tuple[int, ...]) -> HostArray:
    if data.shape != shape:
        raise BindingMismatch(const.label, "shape", str(list(shape)), str(list(data.shape)))
    try:
        return array_of(data, const.dtype)
    except TypeError:
        raise BindingMismatch(const.label, "dtype", str(const.dtype), str(data.dtype)) from None
