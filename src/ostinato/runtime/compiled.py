"""A plan as programs, and those programs bound to one slot's data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ostinato.device.contract import Bound, Device, HostArray, Program
from ostinato.device.segment import Segment, Slot
from ostinato.device.storage import Storage
from ostinato.ir.encoding import plain
from ostinato.ir.location import HOST
from ostinato.ir.shape import NodeId, elements, resolve
from ostinato.ir.symbols import SymEnv
from ostinato.plan.optimized import CopyStep, OptimizedGraph
from ostinato.runtime.registry import Registry


@dataclass(frozen=True, eq=False)
class CompiledPlan:
    """A plan and the program of each of its segments: no data, shared by any number of slots and threads."""

    plan: OptimizedGraph
    programs: Mapping[int, Program]
    devices: Registry

    @classmethod
    def of(cls, plan: OptimizedGraph, devices: Registry) -> CompiledPlan:
        """Raises NoDevice, or TopologyChanged when a device has gone."""
        devices.check_generation(plan.generation)
        programs = {
            at: devices.device(step.location).compile(step)
            for at, step in enumerate(plan.steps)
            if isinstance(step, Segment)
        }
        return cls(plan, programs, devices)

    def bind(self, values: Mapping[NodeId, Storage], env: SymEnv) -> BoundPlan:
        """Bind Consts' storages, once; `env` gives each symbol the largest value that runs will have."""
        plan = self.plan
        known = dict(values)
        known.update({write: known[slab] for write, slab in plan.aliases.items()})
        bound: dict[int, Bound] = {}
        for at, step in enumerate(plan.steps):
            if isinstance(step, CopyStep):
                if step.target != HOST:
                    node = plan.nodes[step.source]
                    device = self.devices.device(step.target)
                    known[step.node] = device.allocate(
                        elements(node.shape, env), node.dtype, plain(node.dtype)
                    )
                continue
            device = self.devices.device(step.location)
            outputs = {slot.node: _room(device, slot, env) for slot in step.outputs}
            known.update(outputs)
            program = self.programs[at]
            slots = {slot.node: known[slot.node] for slot in step.inputs}
            bound[at] = program.bind(slots, program.workspace(), outputs)
        return BoundPlan(self, known, bound)


@dataclass(frozen=True, eq=False)
class BoundPlan:
    """A compiled plan with storages for every value that crosses a segment: one slot's, one run at a time."""

    compiled: CompiledPlan
    values: Mapping[NodeId, Storage]
    bound: Mapping[int, Bound]

    def run(
        self, env: SymEnv, wanted: Collection[NodeId], overlay: Mapping[NodeId, Storage] | None = None
    ) -> dict[NodeId, HostArray]:
        """Run the plan and bring the `wanted` roots home, as new arrays.

        `overlay` takes the place of bound data for this run alone. Raises TopologyChanged before anything
        runs, and what the devices raise.
        """
        plan, devices = self.compiled.plan, self.compiled.devices
        devices.check_generation(plan.generation)
        fresh = overlay or {}
        results: dict[NodeId, HostArray] = {}
        for at, step in enumerate(plan.steps):
            if isinstance(step, Segment):
                self.bound[at].run(env, fresh).wait()
            elif step.target != HOST:
                value = self._fetch(step, env, fresh)
                devices.device(step.target).write(value, self.values[step.node])
            elif step.node in wanted:
                results[step.node] = self._fetch(step, env, fresh)
        return results

    def fetch(self, root: NodeId, env: SymEnv) -> HostArray:
        """What the last run left for `root`, as a new array."""
        step = next(s for s in self.compiled.plan.steps if isinstance(s, CopyStep) and s.node == root)
        return self._fetch(step, env, {})

    def _fetch(self, step: CopyStep, env: SymEnv, fresh: Mapping[NodeId, Storage]) -> HostArray:
        shape = resolve(self.compiled.plan.nodes[step.source].shape, env)
        storage = fresh.get(step.source) or self.values[step.source]
        return self.compiled.devices.device(step.origin).download(storage, shape)


def _room(device: Device, slot: Slot, env: SymEnv) -> Storage:
    return device.allocate(elements(slot.shape, env), slot.dtype, slot.encoding)
