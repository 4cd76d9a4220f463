"""The contract between the runtime and a device.

program = device.compile(segment)                # immutable, shareable: code and a memory plan, no data
bound = program.bind(slots, workspace, outputs)  # dtype, encoding, location, extent: checked once
pending = bound.run(env, overlay); pending.wait()  # late device errors surface in wait
captured = bound.freeze(varying, env)            # a Captured, or a CaptureRefusal that says why
captured.replay(values).wait()

A device whose storages the host can read where they lie may also have a method `view`; see `view_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ostinato.device.encoded import EncodedTensor
from ostinato.device.segment import Segment
from ostinato.device.storage import Storage
from ostinato.device.traits import Traits
from ostinato.errors.device import NoKernel
from ostinato.errors.graph import BindingMismatch
from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding, element
from ostinato.ir.location import Location
from ostinato.ir.recipe import PackRecipe
from ostinato.ir.shape import NodeId
from ostinato.ir.symbols import SymEnv

HostArray = npt.NDArray[Any]


class Pending(Protocol):
    """A run that may still be going on."""

    def wait(self) -> None:
        """Return when its results are there; raises what went wrong on the device."""


@dataclass(frozen=True, slots=True)
class CaptureRefusal:
    """Why a bound program can't be replayed at fixed addresses."""

    reason: str


class Captured(Protocol):
    """A bound program recorded over fixed addresses."""

    def replay(self, values: Mapping[NodeId, HostArray]) -> Pending:
        """Write the varying inputs, all of them and no others, into their fixed buffers and run again.

        Raises UnboundConst, NotVarying, BindingMismatch or WorkspaceBusy before any buffer is written."""


@runtime_checkable
class OpenCapture(Captured, Protocol):
    """A capture whose inputs lie in the host's reach: who owns it may write them there and `run`."""

    @property
    def buffers(self) -> Mapping[NodeId, HostArray]:
        """The varying inputs."""

    def run(self) -> Pending:
        """Replay what they hold. Raises WorkspaceBusy."""


class Workspace(Protocol):
    """Scratch memory of one slot, never shared by two runs in flight."""

    @property
    def location(self) -> Location: ...


class Bound(Protocol):
    """A program with its data: checked, ready to run any number of times."""

    def run(self, env: SymEnv, overlay: Mapping[NodeId, Storage] = ...) -> Pending:
        """Start one run. `overlay` takes the place of bound inputs for this run alone; those are checked as
        at binding. A failure leaves everything but the outputs and unread slab cells as it was."""

    def freeze(self, varying: Sequence[NodeId], env: SymEnv) -> Captured | CaptureRefusal:
        """Record the run; `varying` are the inputs whose values `replay` brings."""


class Program(Protocol):
    """A compiled segment: immutable, shareable between threads, without data."""

    @property
    def segment(self) -> Segment: ...

    def workspace(self) -> Workspace:
        """Fresh scratch memory for one slot."""

    def bind(
        self, slots: Mapping[NodeId, Storage], workspace: Workspace, outputs: Mapping[NodeId, Storage]
    ) -> Bound:
        """Raises BindingMismatch, DeviceMismatch or UnboundConst before anything runs."""


class Device(Protocol):
    """One place that holds bytes and runs segments. Two devices are the same only if they are one object."""

    @property
    def location(self) -> Location: ...

    @property
    def traits(self) -> Traits: ...

    def allocate(self, elements: int, dtype: DType, encoding: Encoding) -> Storage:
        """Room for `elements`, reading as zero where never written; pages are touched only when used.
        Raises OutOfDeviceMemory, as `upload` and `pack` do."""

    def allocate_slab(self, shape: tuple[int, int, int, int], kv: Encoding, role: str) -> Storage:
        """Room for a KV slab of the logical `shape` `[1, kv_heads, capacity, head_dim]`, in the encoding that
        the traits' `kv_layouts` name for the KV type `kv` and `role` ("k" or "v"); zeros, as with `allocate`.
        It may have more bytes than the shape needs; `write` and `download` speak the logical shape, in the
        type of `kv`'s elements, and what is written is rounded to what `kv` stores.

        Raises OutOfDeviceMemory, or NoKernel for a KV type without a slab layout."""

    def upload(self, array: HostArray, dtype: DType) -> Storage:
        """A new storage with the array's elements; the array may change afterwards."""

    def write(self, array: HostArray, target: Storage) -> None:
        """The array's elements over the first ones of a plain storage of this device and the same dtype; the
        array may change afterwards. Raises BindingMismatch when it has more than the storage."""

    def download(self, storage: Storage, shape: tuple[int, ...]) -> HostArray:
        """The first elements of a plain storage as a new array of `shape`."""

    def copy(self, source: Storage, target: Storage) -> None:
        """The bytes of one storage of this device into another of the same extent."""

    def pack(self, recipe: PackRecipe, tensors: Sequence[EncodedTensor]) -> Storage:
        """The recipe's tensors, in its order, in this device's layout.

        Raises BindingMismatch for other tensors than it names, NoKernel for an encoding without a layout and
        for a permutation that the device doesn't know."""

    def compile(self, segment: Segment) -> Program:
        """Code for a segment."""


def slab_encoding(device: Device, kv: Encoding, role: str) -> Encoding:
    """The encoding of a device's K ("k") or V ("v") slabs of a KV type; raises NoKernel where it has none."""
    layout = device.traits.kv_layouts.get(kv)
    if layout is None:
        raise NoKernel("a KV slab", str(element(kv)), str(kv), str(device.location))
    return {"k": layout.k, "v": layout.v}[role]


def view_of(device: Device, storage: Storage, shape: tuple[int, ...]) -> HostArray | None:
    """What `device.download` copies, read where it lies: a read-only array over the storage's own memory,
    which later runs change. None for a device that has no method `view(storage, shape)`, or answers so."""
    view: Callable[[Storage, tuple[int, ...]], HostArray | None] | None = getattr(device, "view", None)
    return None if view is None else view(storage, shape)


def fitting(label: str, value: HostArray, shape: tuple[int, ...], dtype: DType) -> HostArray:
    """`value` as a contiguous array of exactly this shape and dtype; raises BindingMismatch."""
    if (
        type(value) is np.ndarray
        and value.shape == shape
        and value.dtype == dtype.numpy
        and value.flags.c_contiguous
    ):
        return value
    if not isinstance(value, np.ndarray | np.generic):
        raise BindingMismatch(label, "type", "a numpy array", type(value).__name__)
    if value.shape != shape:
        raise BindingMismatch(label, "shape", str(list(shape)), str(list(value.shape)))
    try:
        return array_of(np.asarray(value), dtype)
    except TypeError:
        raise BindingMismatch(label, "dtype", str(dtype), str(value.dtype)) from None


def array_of(data: HostArray, dtype: DType) -> HostArray:
    """`data` as a contiguous array of exactly `dtype`; raises TypeError when that would lose values."""
    return data.astype(dtype.numpy, order="C", casting="safe", copy=False)
