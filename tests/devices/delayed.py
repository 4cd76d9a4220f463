"""A test device that behaves like one that is far away.

Runs are only enqueued by `run` and happen in `wait`, where errors surface too. Programs and captures hold
addresses, never storages: memory whose storage is gone is overwritten (0xFF: NaN, or index -1), so whoever
forgets to keep an input alive reads rubbish. Products and sums have one order whatever the number of rows.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from ostinato.device.contract import CaptureRefusal, HostArray, array_of, fitting, slab_encoding
from ostinato.device.encoded import EncodedTensor
from ostinato.device.segment import Segment, Slot
from ostinato.device.storage import Part, Storage
from ostinato.device.traits import WritePath
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.devices.reference.lower import lower
from ostinato.errors import BindingMismatch, DeviceMismatch, NotVarying, UnboundConst, WorkspaceBusy
from ostinato.ir import DType, Location, SymEnv, SymId
from ostinato.ir.encoding import F16, F32, Encoding, element, plain
from ostinato.ir.ops.product import MatMul, SelectedMatMul
from ostinato.ir.ops.reduce import Sum
from ostinato.ir.ops.slab import WriteSlice
from ostinato.ir.recipe import PackRecipe
from ostinato.ir.shape import NodeId, is_static, resolve

ROWS = SymId("rows")


class InjectedFailure(RuntimeError):
    """The device was told to fail here."""


class DelayedDevice:
    """`fail_after` kernels from now the next one fails; `late` moves work and errors from `run` to `wait`."""

    def __init__(
        self,
        ordinal: int = 0,
        *,
        kind: str = "delayed",
        write_path: WritePath = WritePath.DEVICE_OFFSET,
        dynamic_rows: bool = True,
        can_capture: bool = True,
        late: bool = True,
    ) -> None:
        self.location = Location(kind, ordinal)
        self._reference = ReferenceDevice()
        self.traits = replace(
            self._reference.traits,
            write_path=write_path,
            dynamic_rows=dynamic_rows,
            can_capture=can_capture,
            bit_contract=True,
            kv_layouts={kv: self._reference.traits.kv_layouts[kv] for kv in (F32, F16)},
        )
        self.late = late
        self.fail_after: int | None = None
        self.kernels = 0
        """Kernels run so far."""
        self.waits = 0

    def allocate(self, elements: int, dtype: DType, encoding: Encoding) -> Storage:
        return self.adopt(np.zeros(elements, dtype.numpy), dtype, encoding)

    def allocate_slab(self, shape: tuple[int, int, int, int], kv: Encoding, role: str) -> Storage:
        return self.allocate(prod(shape), element(kv), slab_encoding(self, kv, role))

    def upload(self, array: HostArray, dtype: DType) -> Storage:
        return self.adopt(array_of(array, dtype).reshape(-1).copy(), dtype, plain(dtype))

    def write(self, array: HostArray, target: Storage) -> None:
        memory(self._mine(target))[: array.size] = array_of(array, target.dtype).reshape(-1)

    def download(self, storage: Storage, shape: tuple[int, ...]) -> HostArray:
        return memory(self._mine(storage))[: prod(shape)].reshape(shape).copy()

    def copy(self, source: Storage, target: Storage) -> None:
        np.copyto(memory(self._mine(target)), memory(self._mine(source)))

    def pack(self, recipe: PackRecipe, tensors: Sequence[EncodedTensor]) -> Storage:
        packed = self._reference.pack(recipe, tensors)
        return self.adopt(packed.parts[0].data, packed.dtype, packed.encoding)

    def compile(self, segment: Segment) -> DelayedProgram:
        return DelayedProgram(self, segment)

    def adopt(self, array: HostArray, dtype: DType, encoding: Encoding) -> Storage:
        """A storage over the array, whose bytes are overwritten once the storage is gone."""
        handle = array[:]
        weakref.finalize(handle, _overwrite, array).atexit = False
        return Storage(self.location, dtype, encoding, (Part("values", array.nbytes, handle),))

    def tick(self) -> None:
        """A kernel is about to run; raises InjectedFailure."""
        self.kernels += 1
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                self.fail_after = None
                raise InjectedFailure

    def _mine(self, storage: Storage) -> Storage:
        if storage.location != self.location:
            raise DeviceMismatch("the storage", str(self.location), str(storage.location))
        return storage


def memory(storage: Storage) -> HostArray:
    """The bytes themselves; holding them doesn't keep the storage."""
    owner: HostArray = storage.parts[0].data.base
    return owner


def _overwrite(array: HostArray) -> None:
    array.view(np.uint8)[:] = 0xFF


@dataclass(eq=False)
class DelayedWorkspace:
    location: Location
    in_flight: threading.Lock = field(default_factory=threading.Lock)


class DelayedProgram:
    def __init__(self, device: DelayedDevice, segment: Segment) -> None:
        self.device = device
        self.segment = segment
        self.tape = lower(segment)

    def workspace(self) -> DelayedWorkspace:
        return DelayedWorkspace(self.segment.location)

    def bind(
        self, slots: Mapping[NodeId, Storage], workspace: Any, outputs: Mapping[NodeId, Storage]
    ) -> DelayedBound:
        assert isinstance(workspace, DelayedWorkspace)
        if workspace.location != self.segment.location:
            raise DeviceMismatch("the workspace", str(self.segment.location), str(workspace.location))
        inputs = [self.checked(slot, slots) for slot in self.segment.inputs]
        return DelayedBound(self, inputs, [self.checked(s, outputs) for s in self.segment.outputs], workspace)

    def checked(self, slot: Slot, storages: Mapping[NodeId, Storage]) -> HostArray:
        storage = storages.get(slot.node)
        if storage is None:
            raise UnboundConst(slot.label, "slot")
        for what, expected, got in (
            ("dtype", slot.dtype, storage.dtype),
            ("encoding", slot.encoding, storage.encoding),
        ):
            if expected != got:
                raise BindingMismatch(slot.label, what, str(expected), str(got))
        if storage.location != self.segment.location:
            raise DeviceMismatch(slot.label, str(self.segment.location), str(storage.location))
        array = memory(storage)
        return shaped(slot, array, SymEnv()) if is_static(slot.shape) else array


def shaped(slot: Slot, array: HostArray, env: SymEnv) -> HostArray:
    shape = resolve(slot.shape, env)
    if prod(shape) > array.size:
        raise BindingMismatch(slot.label, "extent", f"{prod(shape)} elements", f"{array.size} elements")
    return array.reshape(-1)[: prod(shape)].reshape(shape)


class Enqueued:
    """Work that waits to be waited for."""

    def __init__(self, device: DelayedDevice, workspace: DelayedWorkspace, work: Callable[[], None]) -> None:
        if not workspace.in_flight.acquire(blocking=False):
            raise WorkspaceBusy(str(workspace.location))
        self._device, self._workspace, self._work = device, workspace, work
        if not device.late:
            self.wait()

    def wait(self) -> None:
        work, self._work = self._work, lambda: None
        self._device.waits += 1
        try:
            with np.errstate(all="ignore"):
                work()
        finally:
            if self._workspace.in_flight.locked():
                self._workspace.in_flight.release()


class DelayedBound:
    def __init__(
        self,
        program: DelayedProgram,
        inputs: list[HostArray],
        outputs: list[HostArray],
        workspace: DelayedWorkspace,
    ) -> None:
        self._program, self._inputs, self._outputs, self._workspace = program, inputs, outputs, workspace

    def run(self, env: SymEnv, overlay: Mapping[NodeId, Storage] | None = None) -> Enqueued:
        program, segment = self._program, self._program.segment
        if not program.device.traits.dynamic_rows and env[ROWS] != segment.bounds[ROWS]:
            raise BindingMismatch("rows", "extent", str(segment.bounds[ROWS]), str(env[ROWS]))
        inputs = list(self._inputs)
        for i, slot in enumerate(segment.inputs):
            if slot.changing:
                own = overlay is None or slot.node not in overlay
                inputs[i] = shaped(slot, inputs[i] if own else program.checked(slot, overlay), env)
        return Enqueued(program.device, self._workspace, lambda: self._execute(inputs, env))

    def _execute(self, inputs: list[HostArray], env: SymEnv) -> None:
        program = self._program
        registers: list[Any] = [*inputs, *[None] * (program.tape.registers - len(inputs))]
        for step in program.tape.instructions:
            program.device.tick()
            kernel = ONE_ORDER.get(type(step.op), step.kernel)
            registers[step.output] = kernel(step.op, env, *[registers[i] for i in step.inputs])
            for register in step.drop:
                registers[register] = None
        for slot, target in zip(program.segment.outputs, self._outputs, strict=True):
            np.copyto(shaped(slot, target, env), registers[program.tape.outputs[slot.node]])

    def freeze(self, varying: Sequence[NodeId], env: SymEnv) -> DelayedCapture | CaptureRefusal:
        segment = self._program.segment
        if not self._program.device.traits.can_capture:
            return CaptureRefusal(f"{segment.location} doesn't capture")
        for step in self._program.tape.instructions:
            if isinstance(step.op, WriteSlice):
                return CaptureRefusal(f"{step.op.name} writes at a position that rides in the symbols")
        known = {slot.node: a for slot, a in zip(segment.inputs, self._inputs, strict=True)}
        if missing := [node for node in varying if node not in known]:
            return CaptureRefusal(f"%{missing[0]} is no input of this segment")
        slots = {slot.node: slot for slot in segment.inputs}
        return DelayedCapture(self, {n: (slots[n], shaped(slots[n], known[n], env)) for n in varying}, env)


class DelayedCapture:
    """Fixed addresses: what is replayed is whatever lies there."""

    def __init__(
        self, bound: DelayedBound, varying: Mapping[NodeId, tuple[Slot, HostArray]], env: SymEnv
    ) -> None:
        self._bound, self._varying, self._env = bound, varying, env

    def replay(self, values: Mapping[NodeId, HostArray]) -> Enqueued:
        if extra := [node for node in values if node not in self._varying]:
            raise NotVarying(extra[0], tuple(self._varying))
        fitted = {}
        for node, (slot, buffer) in self._varying.items():
            if node not in values:
                raise UnboundConst(slot.label, "varying input")
            fitted[node] = fitting(slot.label, values[node], buffer.shape, slot.dtype)
        for node, value in fitted.items():
            self._varying[node][1][...] = value
        return self._bound.run(self._env)


def _matmul(op: MatMul, env: SymEnv, a: HostArray, b: HostArray) -> HostArray:
    """Every element a sum of its own, in float64, in one order."""
    left, right = a.astype(np.float64)[..., :, None, :], np.swapaxes(b, -1, -2).astype(np.float64)
    return np.ascontiguousarray(left * right[..., None, :, :]).sum(-1).astype(np.float32)


def _sum(op: Sum, env: SymEnv, x: HostArray) -> HostArray:
    rows = np.ascontiguousarray(np.moveaxis(x, op.axis, -1), dtype=np.float64)
    return np.expand_dims(rows.sum(-1).astype(np.float32), op.axis)


def _selected(op: SelectedMatMul, env: SymEnv, lanes: HostArray, a: HostArray, b: HostArray) -> HostArray:
    """The same over the selected lanes alone."""
    left, right = a.astype(np.float64)[..., :, None, :], np.swapaxes(b, -1, -2).astype(np.float64)
    return np.where(lanes[:, None, :], left * right[..., None, :, :], 0.0).sum(-1).astype(np.float32)


ONE_ORDER: dict[type, Callable[..., HostArray]] = {
    MatMul: _matmul,
    SelectedMatMul: _selected,
    Sum: _sum,
}
