"""Running a lowered segment on numpy arrays."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.device.contract import CaptureRefusal, HostArray, Workspace, fitting
from ostinato.device.segment import Segment, Slot
from ostinato.device.storage import Storage
from ostinato.devices.reference.blas import blas_threads
from ostinato.devices.reference.lower import Tape, lower
from ostinato.devices.reference.quantized import QuantizedSlab, sizes
from ostinato.errors.device import DeviceMismatch, NoKernel, NotVarying, WorkspaceBusy
from ostinato.errors.graph import BindingMismatch, UnboundConst
from ostinato.ir.encoding import F32, Q8_0
from ostinato.ir.location import Location
from ostinato.ir.ops.movement import Clone
from ostinato.ir.ops.slab import ReadPrefix, SlabWrite, WriteSlice
from ostinato.ir.shape import NodeId, is_static, resolve
from ostinato.ir.symbols import SymEnv

Array = npt.NDArray[Any]
Held = Any
"""What a slot's storage is to kernels: an array, or a QuantizedSlab, which is no data that changes."""
_NO_OVERLAY: Mapping[NodeId, Storage] = MappingProxyType({})


class Done:
    """The reference device works while it is called: nothing is ever pending."""

    def wait(self) -> None:
        return None


_DONE = Done()


@dataclass(eq=False)
class ReferenceWorkspace:
    """numpy allocates as it goes; what is left to own is the right to run."""

    location: Location
    in_flight: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> None:
        """The right to run and to write inputs that a run reads; raises WorkspaceBusy."""
        if not self.in_flight.acquire(blocking=False):
            raise WorkspaceBusy(str(self.location))

    def __exit__(self, *_: object) -> None:
        self.in_flight.release()


@dataclass
class Threads:
    """BLAS threads while one device runs; None leaves BLAS as it is. Its programs share this one object."""

    count: int | None

    def limited(self) -> AbstractContextManager[object]:
        return nullcontext() if self.count is None else blas_threads(self.count)


class ReferenceProgram:
    """A segment as a tape of numpy calls."""

    def __init__(self, segment: Segment, threads: Threads) -> None:
        self.segment = segment
        self.tape = lower(segment)
        check_slabs(segment, self.tape)
        self._threads = threads

    def workspace(self) -> ReferenceWorkspace:
        return ReferenceWorkspace(self.segment.location)

    def bind(
        self, slots: Mapping[NodeId, Storage], workspace: Workspace, outputs: Mapping[NodeId, Storage]
    ) -> ReferenceBound:
        assert isinstance(workspace, ReferenceWorkspace)
        location = self.segment.location
        if workspace.location != location:
            raise DeviceMismatch("the workspace", str(location), str(workspace.location))
        inputs = [Port.of(slot, i, slots, location) for i, slot in enumerate(self.segment.inputs)]
        results = [
            Port.of(slot, self.tape.outputs[slot.node], outputs, location) for slot in self.segment.outputs
        ]
        return ReferenceBound(self.segment, self.tape, inputs, results, workspace, self._threads)


def check_slabs(segment: Segment, tape: Tape) -> None:
    """Raises NoKernel where an op reads a quantised slab that knows arrays alone."""
    slabs = {i for i, slot in enumerate(segment.inputs) if slot.encoding == Q8_0}
    for step in tape.instructions if slabs else ():
        if isinstance(step.op, SlabWrite):
            slabs |= {step.output} if step.inputs[0] in slabs else set()
        elif not (isinstance(step.op, ReadPrefix | Clone) or slabs.isdisjoint(step.inputs)):
            raise NoKernel(step.op.name, str(F32), str(Q8_0), str(segment.location))


def checked(slot: Slot, storages: Mapping[NodeId, Storage], location: Location) -> Held:
    """What is behind a slot: a flat array, viewed in the slot's shape where that is known, or a slab."""
    storage = storages.get(slot.node)
    if storage is None:
        raise UnboundConst(slot.label, "slot")
    if storage.location != location:
        raise DeviceMismatch(slot.label, str(location), str(storage.location))
    if storage.dtype is not slot.dtype:
        raise BindingMismatch(slot.label, "dtype", str(slot.dtype), str(storage.dtype))
    if storage.encoding != slot.encoding:
        raise BindingMismatch(slot.label, "encoding", str(slot.encoding), str(storage.encoding))
    if slot.encoding == Q8_0:
        return _quantized(slot, storage)
    array: Array = storage.parts[0].data
    return _view(slot, array, SymEnv()) if is_static(slot.shape) else array


def _quantized(slot: Slot, storage: Storage) -> QuantizedSlab:
    """A slab, which has the same extent in every run."""
    shape = resolve(slot.shape, SymEnv())
    for part, count in zip(storage.parts, sizes(shape), strict=True):
        if part.data.size != count:
            raise BindingMismatch(slot.label, "extent", f"{count} {part.role}", f"{part.data.size}")
    return QuantizedSlab(storage, shape)


def _view(slot: Slot, array: Array, env: SymEnv) -> Array:
    shape = resolve(slot.shape, env)
    count = prod(shape)
    if count > array.size:
        raise BindingMismatch(slot.label, "extent", f"{count} elements", f"{array.size} elements")
    return array if array.shape == shape else array[:count].reshape(shape)


@dataclass(frozen=True, slots=True)
class Port:
    """A slot of a bound tape: its register, and its array, flat where its shape waits for the symbols."""

    slot: Slot
    register: int
    array: Held
    sized: bool

    @classmethod
    def of(cls, slot: Slot, register: int, storages: Mapping[NodeId, Storage], location: Location) -> Port:
        return cls(slot, register, checked(slot, storages, location), is_static(slot.shape))

    def viewed(self, env: SymEnv) -> Held:
        """The array in the shape that the slot has in a run."""
        return self.array if self.sized else _view(self.slot, self.array, env)


Registers = list[Any]


class ReferenceBound:
    """A tape with its arrays."""

    def __init__(
        self,
        segment: Segment,
        tape: Tape,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        workspace: ReferenceWorkspace,
        threads: Threads,
    ) -> None:
        self._segment = segment
        self._tape = tape
        self._inputs = {port.slot.node: port for port in inputs}
        self._registers: Registers = [None] * tape.registers
        for port in inputs:
            self._registers[port.register] = port.array
        # Inputs that may differ from run to run; weights and slabs are what was bound.
        self._changing = [port for port in inputs if port.slot.changing]
        self._outputs = outputs
        self._workspace = workspace
        self._threads = threads

    def run(self, env: SymEnv, overlay: Mapping[NodeId, Storage] = _NO_OVERLAY) -> Done:
        """Raises WorkspaceBusy, UnboundSymbol, IndexOutOfRange."""
        with self._workspace:
            self._run(self._loaded(env, overlay), self._targets(env), env)
        return _DONE

    def _loaded(self, env: SymEnv, overlay: Mapping[NodeId, Storage]) -> Registers:
        """The registers as a run finds them."""
        registers = self._registers.copy()
        for port in self._changing:
            if port.slot.node in overlay:
                fresh = checked(port.slot, overlay, self._segment.location)
                registers[port.register] = fresh if port.sized else _view(port.slot, fresh, env)
            elif not port.sized:
                registers[port.register] = _view(port.slot, port.array, env)
        return registers

    def _targets(self, env: SymEnv) -> list[tuple[int, Array]]:
        """The registers that a run hands back, and where they go; a slab is written where it lies."""
        targets = [(port.register, port.viewed(env)) for port in self._outputs]
        return [(register, held) for register, held in targets if not isinstance(held, QuantizedSlab)]

    def _run(self, registers: Registers, targets: Sequence[tuple[int, Array]], env: SymEnv) -> None:
        # inf and NaN are legitimate values here: masked scores, exp of large numbers, f16 overflow
        with np.errstate(all="ignore"), self._threads.limited():
            for step in self._tape.instructions:
                registers[step.output] = step.kernel(step.op, env, *[registers[i] for i in step.inputs])
                for register in step.drop:
                    registers[register] = None
        for register, target in targets:
            np.copyto(target, registers[register])

    def freeze(self, varying: Sequence[NodeId], env: SymEnv) -> ReferenceCapture | CaptureRefusal:
        for step in self._tape.instructions:
            if isinstance(step.op, WriteSlice) and not isinstance(step.op.start, int):
                return CaptureRefusal(f"{step.op.name} writes at a position that rides in the symbols")
        missing = [node for node in varying if node not in self._inputs]
        if missing:
            return CaptureRefusal(f"%{missing[0]} is no input of this segment")
        return ReferenceCapture(self, [self._inputs[node] for node in varying], env)


class ReferenceCapture:
    """A bound tape whose varying inputs are written in place before each replay."""

    def __init__(self, bound: ReferenceBound, varying: Sequence[Port], env: SymEnv) -> None:
        self._bound = bound
        self._varying = {port.slot.node: (port.slot, port.viewed(env)) for port in varying}
        self._env = env
        self._registers = bound._loaded(env, _NO_OVERLAY)
        self._targets = bound._targets(env)

    @property
    def buffers(self) -> Mapping[NodeId, HostArray]:
        """The inputs where they lie: a caller that owns them may write there, and `run`."""
        return {node: array for node, (_, array) in self._varying.items()}

    def run(self) -> Done:
        """Replay what the inputs hold. Raises WorkspaceBusy, IndexOutOfRange."""
        with self._bound._workspace:
            self._run()
        return _DONE

    def replay(self, values: Mapping[NodeId, HostArray]) -> Done:
        fitted = self.check(values)
        with self._bound._workspace:
            for node, value in fitted.items():
                self._varying[node][1][...] = value
            self._run()
        return _DONE

    def _run(self) -> None:
        self._bound._run(self._registers.copy(), self._targets, self._env)

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
