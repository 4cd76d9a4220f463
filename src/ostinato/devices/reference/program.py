"""Running a lowered segment on numpy arrays."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from ostinato.errors.device import DeviceMismatch, NotVarying, WorkspaceBusy
from ostinato.errors.graph import BindingMismatch, UnboundConst
from ostinato.ir.location import Location
from ostinato.ir.ops.slab import WriteSlice
from ostinato.ir.shape import NodeId, is_static, resolve
from ostinato.ir.symbols import SymEnv

Array = npt.NDArray[Any]
_NO_OVERLAY: Mapping[NodeId, Storage] = MappingProxyType({})


class Done:
    """The reference device works while it is called: nothing is ever pending."""

    def wait(self) -> None:
        return None


@dataclass(eq=False)
class ReferenceWorkspace:
    """numpy allocates as it goes; what is left to own is the right to run."""

    location: Location
    in_flight: threading.Lock = field(default_factory=threading.Lock)


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
        inputs = [checked(slot, slots, location) for slot in self.segment.inputs]
        results = [checked(slot, outputs, location) for slot in self.segment.outputs]
        return ReferenceBound(self.segment, self.tape, inputs, results, workspace, self._threads)


def checked(slot: Slot, storages: Mapping[NodeId, Storage], location: Location) -> Array:
    """The flat array behind a slot, viewed in the slot's shape where that is known."""
    storage = storages.get(slot.node)
    if storage is None:
        raise UnboundConst(slot.label, "slot")
    if storage.location != location:
        raise DeviceMismatch(slot.label, str(location), str(storage.location))
    if storage.dtype is not slot.dtype:
        raise BindingMismatch(slot.label, "dtype", str(slot.dtype), str(storage.dtype))
    if storage.encoding != slot.encoding:
        raise BindingMismatch(slot.label, "encoding", str(slot.encoding), str(storage.encoding))
    array: Array = storage.parts[0].data
    return _view(slot, array, SymEnv()) if is_static(slot.shape) else array


def _view(slot: Slot, array: Array, env: SymEnv) -> Array:
    shape = resolve(slot.shape, env)
    count = prod(shape)
    if count > array.size:
        raise BindingMismatch(slot.label, "extent", f"{count} elements", f"{array.size} elements")
    return array if array.shape == shape else array[:count].reshape(shape)


class ReferenceBound:
    """A tape with its arrays."""

    def __init__(
        self,
        segment: Segment,
        tape: Tape,
        inputs: list[Array],
        outputs: list[Array],
        workspace: ReferenceWorkspace,
        threads: Threads,
    ) -> None:
        self._segment = segment
        self._tape = tape
        self._inputs = inputs
        self._blank = [None] * (tape.registers - len(inputs))
        # Inputs that may differ from run to run; weights and slabs are what was bound.
        self._changing = [i for i, slot in enumerate(segment.inputs) if slot.changing]
        self._outputs = outputs
        self._workspace = workspace
        self._threads = threads

    def run(self, env: SymEnv, overlay: Mapping[NodeId, Storage] = _NO_OVERLAY) -> Done:
        """Raises WorkspaceBusy, UnboundSymbol, IndexOutOfRange."""
        with self.owned():
            self.run_owned(env, overlay)
        return Done()

    @contextmanager
    def owned(self) -> Iterator[None]:
        """The right to run and to write inputs that a run reads; raises WorkspaceBusy."""
        if not self._workspace.in_flight.acquire(blocking=False):
            raise WorkspaceBusy(str(self._workspace.location))
        try:
            yield
        finally:
            self._workspace.in_flight.release()

    def run_owned(self, env: SymEnv, overlay: Mapping[NodeId, Storage] = _NO_OVERLAY) -> None:
        """Run within `owned`."""
        # inf and NaN are legitimate values here: masked scores, exp of large numbers, f16 overflow
        with np.errstate(all="ignore"), self._threads.limited():
            self._run(env, overlay)

    def _run(self, env: SymEnv, overlay: Mapping[NodeId, Storage]) -> None:
        registers: list[Any] = [*self._inputs, *self._blank]
        for i in self._changing:
            slot = self._segment.inputs[i]
            array = (
                checked(slot, overlay, self._segment.location) if slot.node in overlay else self._inputs[i]
            )
            registers[i] = array if is_static(slot.shape) else _view(slot, array, env)
        for step in self._tape.instructions:
            registers[step.output] = step.kernel(step.op, env, *[registers[i] for i in step.inputs])
            for register in step.drop:
                registers[register] = None
        for slot, target in zip(self._segment.outputs, self._outputs, strict=True):
            np.copyto(_view(slot, target, env), registers[self._tape.outputs[slot.node]])

    def freeze(self, varying: Sequence[NodeId], env: SymEnv) -> ReferenceCapture | CaptureRefusal:
        for step in self._tape.instructions:
            if isinstance(step.op, WriteSlice) and not isinstance(step.op.start, int):
                return CaptureRefusal(f"{step.op.name} writes at a position that rides in the symbols")
        known = {
            slot.node: (slot, array) for slot, array in zip(self._segment.inputs, self._inputs, strict=True)
        }
        missing = [node for node in varying if node not in known]
        if missing:
            return CaptureRefusal(f"%{missing[0]} is no input of this segment")
        return ReferenceCapture(self, {node: known[node] for node in varying}, env)


class ReferenceCapture:
    """A bound tape whose varying inputs are written in place before each replay."""

    def __init__(
        self, bound: ReferenceBound, varying: Mapping[NodeId, tuple[Slot, Array]], env: SymEnv
    ) -> None:
        self._bound = bound
        self._varying = {node: (slot, _view(slot, array, env)) for node, (slot, array) in varying.items()}
        self._env = env

    def replay(self, values: Mapping[NodeId, HostArray]) -> Done:
        fitted = self.check(values)
        with self._bound.owned():
            for node, value in fitted.items():
                self._varying[node][1][...] = value
            self._bound.run_owned(self._env)
        return Done()

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
