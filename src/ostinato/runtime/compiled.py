"""A plan as programs, and those programs bound to one slot's data."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ostinato.device.contract import Bound, Device, HostArray, Program, view_of
from ostinato.device.segment import Segment, Slot
from ostinato.device.storage import Storage
from ostinato.errors.device import WorkspaceBusy
from ostinato.ir.encoding import plain
from ostinato.ir.location import HOST
from ostinato.ir.shape import NodeId, Shape, elements, resolve
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


@dataclass(frozen=True, slots=True)
class _Fetch:
    """A Copy between devices or to the host, with the devices at its ends; None is the host."""

    step: CopyStep
    shape: Shape
    origin: Device
    target: Device | None


class BoundPlan:
    """A compiled plan with storages for every value that crosses a segment: one slot's, one run at a time.

    `runs` counts them: what a view of a result shows is the last one's.
    """

    def __init__(
        self, compiled: CompiledPlan, values: Mapping[NodeId, Storage], bound: Mapping[int, Bound]
    ) -> None:
        self.compiled = compiled
        self.values = values
        self.bound = bound
        self.runs = 0
        self._in_use = threading.Lock()
        plan, devices = compiled.plan, compiled.devices
        self._where = ", ".join(dict.fromkeys(str(device) for device in plan.placement.values()))
        self._steps: list[Bound | _Fetch] = []
        self._roots: dict[NodeId, _Fetch] = {}
        for at, step in enumerate(plan.steps):
            if isinstance(step, Segment):
                self._steps.append(bound[at])
                continue
            target = None if step.target == HOST else devices.device(step.target)
            fetch = _Fetch(step, plan.nodes[step.source].shape, devices.device(step.origin), target)
            self._steps.append(fetch)
            if target is None:
                self._roots[step.node] = fetch

    def enter(self) -> None:
        """Begin a run: its inputs may be written, and what was read in place until now is no more.

        Raises WorkspaceBusy while another is between `enter` and `leave`.
        """
        if not self._in_use.acquire(blocking=False):
            raise WorkspaceBusy(self._where)
        self.runs += 1

    def leave(self) -> None:
        """The run's results have been taken."""
        self._in_use.release()

    def run(
        self, env: SymEnv, wanted: Collection[NodeId], overlay: Mapping[NodeId, Storage] | None = None
    ) -> dict[NodeId, HostArray]:
        """Run the plan and bring the `wanted` roots home, as new arrays.

        `overlay` takes the place of bound data for this run alone. Raises WorkspaceBusy, TopologyChanged
        before anything runs, and what the devices raise.
        """
        self.enter()
        try:
            return self.run_entered(env, wanted, overlay)
        finally:
            self.leave()

    def run_entered(
        self, env: SymEnv, wanted: Collection[NodeId], overlay: Mapping[NodeId, Storage] | None = None
    ) -> dict[NodeId, HostArray]:
        """`run` for one who has called `enter`."""
        self.compiled.devices.check_generation(self.compiled.plan.generation)
        fresh = overlay or {}
        results: dict[NodeId, HostArray] = {}
        for step in self._steps:
            if not isinstance(step, _Fetch):
                step.run(env, fresh).wait()
            elif step.target is not None:
                step.target.write(self._download(step, env, fresh), self.values[step.step.node])
            elif step.step.node in wanted:
                results[step.step.node] = self._download(step, env, fresh)
        return results

    def fetch(self, root: NodeId, env: SymEnv) -> HostArray:
        """What the last run left for `root`, as a new array."""
        return self._download(self._roots[root], env, {})

    def view(self, root: NodeId, env: SymEnv) -> HostArray | None:
        """The same in place, until the next run; None where the host can't read the device's memory."""
        fetch = self._roots[root]
        return view_of(fetch.origin, self.values[fetch.step.source], resolve(fetch.shape, env))

    def _download(self, fetch: _Fetch, env: SymEnv, fresh: Mapping[NodeId, Storage]) -> HostArray:
        storage = fresh.get(fetch.step.source) or self.values[fetch.step.source]
        return fetch.origin.download(storage, resolve(fetch.shape, env))


def _room(device: Device, slot: Slot, env: SymEnv) -> Storage:
    return device.allocate(elements(slot.shape, env), slot.dtype, slot.encoding)
