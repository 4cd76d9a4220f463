"""A compiled segment, a slot's data bound to it, and its capture."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
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
from ostinato.devices.cpu.slabs import SlabGeometry, slab_kind
from ostinato.devices.cpu.weights import STORED
from ostinato.errors.device import (
    DeviceMismatch,
    IndexOutOfRange,
    NotVarying,
    OutOfDeviceMemory,
    WorkspaceBusy,
)
from ostinato.errors.graph import BindingMismatch, UnboundConst
from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding
from ostinato.ir.location import Location
from ostinato.ir.shape import NodeId, elements, is_sized, is_static, resolve
from ostinato.ir.symbols import SymEnv, SymId

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
        for slot in (*self.segment.inputs, *self.segment.outputs):
            if is_static(slot.shape):
                check_extent(slot, bound[slot.node], SymEnv())
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
    """The guard of all memory that is bound: kernels rely on it. Raises BindingMismatch."""
    if is_sized(slot.shape):
        needed = stored_bytes(resolve(slot.shape, env), slot.dtype, slot.encoding)
        if needed > storage.nbytes:
            raise BindingMismatch(slot.label, "extent", f"{needed} bytes", f"{storage.nbytes} bytes")


def stored_bytes(shape: tuple[int, ...], dtype: DType, encoding: Encoding) -> int:
    """Bytes of a plain value, a packed weight or a slab."""
    if encoding.is_plain:
        return prod(shape) * dtype.nbytes
    form = STORED.get(encoding)
    if form is not None:
        return form.packed_bytes(prod(shape[:-1]), shape[-1])
    kind = slab_kind(encoding)
    assert kind is not None, "nothing else is bound"
    return SlabGeometry.of(shape, *kind).nbytes


def check_bounds(bounds: Mapping[SymId, int], env: SymEnv) -> None:
    """The guard of the arena, which has room for so much. Raises BindingMismatch."""
    for symbol, value in env.items():
        most = bounds.get(symbol)
        if most is not None and value > most:
            raise BindingMismatch(str(symbol), "extent", f"at most {most}", str(value))


class CpuBound:
    """A program's image with addresses in it, and what keeps those addresses alive."""

    def __init__(
        self, program: CpuProgram, storages: Mapping[NodeId, Storage], workspace: CpuWorkspace
    ) -> None:
        self._program = program
        self._storages = storages
        self._workspace = workspace
        self._changing = [slot for slot in program.segment.inputs if slot.changing]
        self._growing = [slot for slot in program.segment.outputs if not is_static(slot.shape)]
        self._job = Job(program.image, workspace.arena.address, workspace.counters.address)
        for node, storage in storages.items():
            self._point(node, storage)
        self.prepared_for: CpuCapture | None = None
        """The capture whose data and symbols the job has; None after any other run."""

    def _point(self, node: NodeId, storage: Storage) -> None:
        self._job.point(node, storage.parts[0].data.address)

    def run(self, env: SymEnv, overlay: Mapping[NodeId, Storage] = _NO_OVERLAY) -> Done:
        """Raises WorkspaceBusy, UnboundSymbol, BindingMismatch, IndexOutOfRange."""
        self.enter()
        try:
            self.prepare(env, overlay)
            self.run_owned()
        finally:
            self.leave()
        return _DONE

    def prepare(self, env: SymEnv, overlay: Mapping[NodeId, Storage] = _NO_OVERLAY) -> None:
        """Let the image read this run's data: what the overlay brings, and what was bound for all else."""
        segment = self._program.segment
        check_bounds(segment.bounds, env)
        data = {}
        for slot in self._changing:
            fresh = slot.node in overlay
            storage = checked(slot, overlay, segment.location) if fresh else self._storages[slot.node]
            check_extent(slot, storage, env)
            data[slot.node] = storage
        for slot in self._growing:
            check_extent(slot, self._storages[slot.node], env)
        self.prepared_for = None
        for node, storage in data.items():
            self._point(node, storage)
        self._job.set_symbols(env)

    def enter(self) -> None:
        """Take the right to run and to write what a run reads; raises WorkspaceBusy."""
        if not self._workspace.in_flight.acquire(blocking=False):
            raise WorkspaceBusy(str(self._workspace.location))

    def leave(self) -> None:
        self._workspace.in_flight.release()

    def run_owned(self) -> None:
        """Run between `enter` and `leave`; one foreign call."""
        program, pool, recorder = self._program, self._program.engine.pool, self._program.engine.recorder
        if recorder is None:
            pool.run(self._job.address, program.scratch_bytes)
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
        bound.enter()
        try:
            self._prepare()
        finally:
            bound.leave()

    @property
    def is_prepared(self) -> bool:
        """Whether the job still has this capture's data and symbols."""
        return self._bound.prepared_for is self

    def _prepare(self) -> None:
        self._bound.prepare(self._env)
        self._bound.prepared_for = self

    @property
    def buffers(self) -> Mapping[NodeId, HostArray]:
        """The inputs where they lie: a caller that owns them may write there, and `run`."""
        return {node: array for node, (_, array) in self._varying.items()}

    def run(self) -> Done:
        """Replay what the inputs hold. Raises WorkspaceBusy, IndexOutOfRange."""
        bound = self._bound
        bound.enter()
        try:
            if not self.is_prepared:  # a run with other data came between
                self._prepare()
            bound.run_owned()
        finally:
            bound.leave()
        return _DONE

    def replay(self, values: Mapping[NodeId, HostArray]) -> Done:
        fitted = self.check(values)
        bound = self._bound
        bound.enter()
        try:
            if not self.is_prepared:  # a run with other data came between
                self._prepare()
            for buffer, value in fitted:
                buffer[...] = value
            bound.run_owned()
        finally:
            bound.leave()
        return _DONE

    def check(self, values: Mapping[NodeId, HostArray]) -> Sequence[tuple[HostArray, HostArray]]:
        """Buffers, and the values that go into them; raises UnboundConst, NotVarying or BindingMismatch."""
        if values.keys() != self._varying.keys():
            for node in values:
                if node not in self._varying:
                    raise NotVarying(node, tuple(self._varying))
            missing = next(slot for node, (slot, _) in self._varying.items() if node not in values)
            raise UnboundConst(missing.label, "varying input")
        return [
            (buffer, fitting(slot.label, values[node], buffer.shape, slot.dtype))
            for node, (slot, buffer) in self._varying.items()
        ]
