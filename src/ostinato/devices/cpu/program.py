"""A compiled segment, a slot's data bound to it, and its capture."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from ostinato.device.contract import CaptureRefusal, HostArray, Workspace, fitting
from ostinato.device.measures import Stage
from ostinato.device.segment import Segment, Slot
from ostinato.device.storage import Storage
from ostinato.devices.cpu.engine import Engine
from ostinato.devices.cpu.image import Image, Job
from ostinato.devices.cpu.lower import lower
from ostinato.devices.cpu.memory import Buffer, allocate
from ostinato.devices.cpu.profile import stages_of
from ostinato.errors.device import (
    DeviceMismatch,
    IndexOutOfRange,
    NotVarying,
    OutOfDeviceMemory,
    WorkspaceBusy,
)
from ostinato.errors.graph import BindingMismatch, UnboundConst
from ostinato.ir.location import Location
from ostinato.ir.shape import NodeId, elements, is_sized, resolve
from ostinato.ir.symbols import SymEnv

_NO_OVERLAY: Mapping[NodeId, Storage] = MappingProxyType({})


class Done:
    """A run that is over when the call returns: nothing is ever pending."""

    def wait(self) -> None:
        return None


_DONE = Done()


@dataclass(eq=False)
class CpuWorkspace:
    """One slot's memory for values that live within a run; a run in flight owns it."""

    location: Location
    arena: Buffer
    counters: Buffer
    in_flight: threading.Lock = field(default_factory=threading.Lock)


class CpuProgram:
    """A segment as native kernels and a tape that calls them."""

    def __init__(self, segment: Segment, engine: Engine) -> None:
        self.segment = segment
        self.tape = lower(segment)
        self.engine = engine
        self.scratch_bytes = self.tape.scratch_bytes
        addresses = engine.addresses(step.kernel for step in self.tape.steps)
        self.image = Image.of(self.tape, [addresses[step.kernel.symbol] for step in self.tape.steps])

    @cached_property
    def stages(self) -> Sequence[Stage]:
        """One a step, for profiles."""
        return stages_of(self.segment, self.tape)

    def workspace(self) -> CpuWorkspace:
        """Raises OutOfDeviceMemory."""
        location, tape = self.segment.location, self.tape
        try:
            return CpuWorkspace(location, allocate(tape.arena_bytes), allocate(tape.counter_bytes))
        except MemoryError as error:
            raise OutOfDeviceMemory(str(location), tape.arena_bytes) from error

    def bind(
        self, slots: Mapping[NodeId, Storage], workspace: Workspace, outputs: Mapping[NodeId, Storage]
    ) -> CpuBound:
        assert isinstance(workspace, CpuWorkspace)
        location = self.segment.location
        if workspace.location != location:
            raise DeviceMismatch("the workspace", str(location), str(workspace.location))
        bound = {slot.node: checked(slot, slots, location) for slot in self.segment.inputs}
        bound |= {slot.node: checked(slot, outputs, location) for slot in self.segment.outputs}
        return CpuBound(self, bound, workspace)


def checked(slot: Slot, storages: Mapping[NodeId, Storage], location: Location) -> Storage:
    """The storage for a slot, once it is what the slot declares."""
    storage = storages.get(slot.node)
    if storage is None:
        raise UnboundConst(slot.label, "slot")
    if storage.location != location:
        raise DeviceMismatch(slot.label, str(location), str(storage.location))
    if storage.dtype is not slot.dtype:
        raise BindingMismatch(slot.label, "dtype", str(slot.dtype), str(storage.dtype))
    if storage.encoding != slot.encoding:
        raise BindingMismatch(slot.label, "encoding", str(slot.encoding), str(storage.encoding))
    return storage


def check_extent(slot: Slot, storage: Storage, env: SymEnv) -> None:
    """Raises BindingMismatch for a plain storage that holds less than the slot's shape."""
    if slot.encoding.is_plain and is_sized(slot.shape):
        needed = elements(slot.shape, env) * slot.dtype.nbytes
        if needed > storage.nbytes:
            raise BindingMismatch(slot.label, "extent", f"{needed} bytes", f"{storage.nbytes} bytes")


class CpuBound:
    """A program's image with addresses in it, and what keeps those addresses alive."""

    def __init__(
        self, program: CpuProgram, storages: Mapping[NodeId, Storage], workspace: CpuWorkspace
    ) -> None:
        self._program = program
        self._storages = storages
        self._workspace = workspace
        self._changing = [slot for slot in program.segment.inputs if slot.changing]
        self._job = Job(program.image, workspace.arena.address, workspace.counters.address)
        for node, storage in storages.items():
            self._point(node, storage)
        self.overlaid = True
        """Whether the job may point at another run's data."""

    def _point(self, node: NodeId, storage: Storage) -> None:
        self._job.point(node, storage.parts[0].data.address)

    def run(self, env: SymEnv, overlay: Mapping[NodeId, Storage] = _NO_OVERLAY) -> Done:
        """Raises WorkspaceBusy, UnboundSymbol, BindingMismatch, IndexOutOfRange."""
        with self.owned():
            self.point_inputs(env, overlay)
            self.run_owned()
        return _DONE

    def point_inputs(self, env: SymEnv, overlay: Mapping[NodeId, Storage] = _NO_OVERLAY) -> None:
        """Let the image read this run's data: what the overlay brings, and what was bound for all else."""
        location = self._program.segment.location
        for slot in self._changing:
            fresh = slot.node in overlay
            storage = checked(slot, overlay, location) if fresh else self._storages[slot.node]
            check_extent(slot, storage, env)
            self._point(slot.node, storage)
        self._job.set_symbols(env)
        self.overlaid = bool(overlay)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """The right to run and to write what a run reads; raises WorkspaceBusy."""
        if not self._workspace.in_flight.acquire(blocking=False):
            raise WorkspaceBusy(str(self._workspace.location))
        try:
            yield
        finally:
            self._workspace.in_flight.release()

    def run_owned(self) -> None:
        """Run within `owned`; one foreign call."""
        program, pool, recorder = self._program, self._program.engine.pool, self._program.engine.recorder
        if recorder is None:
            pool.run(self._job.address, program.tape.scratch_bytes)
        else:
            recorder.run(pool, self._job, program.tape, program.stages)
        error = self._job.error
        if error[0]:
            code, index, size = error.tolist()
            error[:] = 0
            _, name = program.tape.steps[code - 1].label.split(" ", 1)
            raise IndexOutOfRange(name, index, size)

    def freeze(self, varying: Sequence[NodeId], env: SymEnv) -> CpuCapture | CaptureRefusal:
        segment = self._program.segment
        for symbol in self._program.image.symbols:
            if symbol not in segment.bounds:
                return CaptureRefusal(f"{symbol} rides in the symbols, a capture would keep the first one's")
        known = {slot.node: slot for slot in segment.inputs}
        missing = [node for node in varying if node not in known]
        if missing:
            return CaptureRefusal(f"%{missing[0]} is no input of this segment")
        buffers = {}
        for node in varying:
            slot, storage = known[node], self._storages[node]
            check_extent(slot, storage, env)
            count = elements(slot.shape, env)
            array = storage.parts[0].data.array.view(slot.dtype.numpy)[:count]
            buffers[node] = (slot, array.reshape(resolve(slot.shape, env)))
        return CpuCapture(self, buffers, env)


class CpuCapture:
    """A bound image whose varying inputs are written in place before each replay."""

    def __init__(
        self, bound: CpuBound, varying: Mapping[NodeId, tuple[Slot, HostArray]], env: SymEnv
    ) -> None:
        self._bound = bound
        self._varying = varying
        self._env = env
        with bound.owned():
            bound.point_inputs(env)

    def replay(self, values: Mapping[NodeId, HostArray]) -> Done:
        fitted = self.check(values)
        bound = self._bound
        with bound.owned():
            if bound.overlaid:  # a run with other data came between
                bound.point_inputs(self._env)
            for node, value in fitted.items():
                self._varying[node][1][...] = value
            bound.run_owned()
        return _DONE

    def check(self, values: Mapping[NodeId, HostArray]) -> Mapping[NodeId, HostArray]:
        """The values as they go into the buffers; raises UnboundConst, NotVarying or BindingMismatch."""
        for node in values:
            if node not in self._varying:
                raise NotVarying(node, tuple(self._varying))
        fitted = {}
        for node, (slot, buffer) in self._varying.items():
            if node not in values:
                raise UnboundConst(slot.label, "varying input")
            fitted[node] = fitting(slot.label, values[node], buffer.shape, slot.dtype)
        return fitted
