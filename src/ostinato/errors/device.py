"""What can go wrong between a plan and the devices that run it."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors.base import OstinatoError


@dataclass(eq=False, repr=False)
class NoDevice(OstinatoError, LookupError):
    """No device is registered at the wanted location."""

    location: str
    registered: tuple[str, ...]

    def message(self) -> str:
        known = ", ".join(self.registered) or "none"
        return f"no device {self.location!r}; registered: {known}"

    @property
    def remedy(self) -> str:
        return "Choose a registered one; ostinato.register_defaults() registers those that are shipped."


@dataclass(eq=False, repr=False)
class MalformedLocation(OstinatoError, ValueError):
    """A text names no place for a device."""

    text: str

    def message(self) -> str:
        return f"{self.text!r} is no device"

    @property
    def remedy(self) -> str:
        return "Write KIND or KIND:ORDINAL, as in reference or reference:1."


@dataclass(eq=False, repr=False)
class OutOfDeviceMemory(OstinatoError, MemoryError):
    """A device has no room for a storage."""

    location: str
    nbytes: int

    def message(self) -> str:
        return f"{self.location} has no room for {self.nbytes:,} bytes"

    @property
    def remedy(self) -> str:
        return "Use a smaller context or model, or another device."


@dataclass(eq=False, repr=False)
class DeviceAlreadyRegistered(OstinatoError, ValueError):
    """Two devices claim the same location."""

    location: str

    def message(self) -> str:
        return f"a device is already registered as {self.location!r}"


@dataclass(eq=False, repr=False)
class NoKernel(OstinatoError, NotImplementedError):
    """A device lacks a kernel for an op on this dtype and encoding; raised while planning."""

    op: str
    dtype: str
    encoding: str
    location: str

    def message(self) -> str:
        return f"{self.location} has no kernel for {self.op} on {self.dtype} in {self.encoding}"

    @property
    def remedy(self) -> str:
        return "Use another device (--device), or convert the file to an encoding that this one knows."


@dataclass(eq=False, repr=False)
class TopologyChanged(OstinatoError, RuntimeError):
    """A plan was made for an older set of devices; nothing of it was run."""

    plan: int
    current: int

    def message(self) -> str:
        return f"the plan was made at topology generation {self.plan}, the current one is {self.current}"

    @property
    def remedy(self) -> str:
        return "Plan again."


@dataclass(eq=False, repr=False)
class DeviceMismatch(OstinatoError, ValueError):
    """Something lives on another device than the one that should use it."""

    what: str
    expected: str
    got: str

    def message(self) -> str:
        return f"{self.what} is on {self.got}, expected on {self.expected}"


@dataclass(eq=False, repr=False)
class WorkspaceBusy(OstinatoError, RuntimeError):
    """A workspace was given to a second run while the first was in flight."""

    location: str

    def message(self) -> str:
        return f"the workspace on {self.location} is in use by a run in flight"


@dataclass(eq=False, repr=False)
class NotVarying(OstinatoError, KeyError):
    """A replay brought a value for an input that its capture holds fixed or doesn't have."""

    node: int
    varying: tuple[int, ...]

    def message(self) -> str:
        known = ", ".join(f"%{node}" for node in self.varying) or "none"
        return f"%{self.node} is no varying input of this capture; those are: {known}"


@dataclass(eq=False, repr=False)
class WeightLayoutConflict(OstinatoError, ValueError):
    """One weight was asked for in two packed layouts; only one copy may exist."""

    weight: str
    packed: str
    wanted: str

    def message(self) -> str:
        return (
            f"the weight {self.weight!r} is packed as {self.packed} and can't also be packed as {self.wanted}"
        )


@dataclass(eq=False, repr=False)
class IndexOutOfRange(OstinatoError, IndexError):
    """A gather or a slab access addressed a row that isn't there; nothing was written."""

    op: str
    index: int
    size: int

    def message(self) -> str:
        return f"{self.op}: index {self.index} is outside 0 … {self.size - 1}"
