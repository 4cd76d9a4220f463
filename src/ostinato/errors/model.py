"""What can be wrong with a model's description or its set of tensors."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors.base import OstinatoError

_SHOWN = 4


@dataclass(eq=False, repr=False)
class UnknownArchitecture(OstinatoError, ValueError):
    """No family here knows the file's architecture."""

    file: str
    architecture: str
    known: tuple[str, ...]

    def message(self) -> str:
        return f"{self.file}: unknown architecture {self.architecture!r}; known: {', '.join(self.known)}"

    @property
    def remedy(self) -> str:
        return "Use a model of a known architecture, or add the family (CONTRIBUTING.md, 'Add a family')."


@dataclass(eq=False, repr=False)
class UnsupportedModel(OstinatoError, NotImplementedError):
    """The architecture is known, one of its settings isn't supported."""

    file: str
    field: str
    expected: str
    got: str

    def message(self) -> str:
        return f"{self.file}: {self.field} is {self.got}, supported: {self.expected}"

    @property
    def remedy(self) -> str:
        return "Use a model without this feature."


@dataclass(eq=False, repr=False)
class FamilyIncomplete(OstinatoError, NotImplementedError):
    """A family leaves out the function that is needed here."""

    family: str
    function: str
    purpose: str

    def message(self) -> str:
        return f"the family {self.family} can't be {self.purpose}: it has no {self.function}"

    @property
    def remedy(self) -> str:
        return f"Use a GGUF file as it is, or give the Family record a {self.function}."


@dataclass(eq=False, repr=False)
class MissingTensors(OstinatoError, ValueError):
    """The model's definition needs tensors that the file lacks."""

    file: str
    tensors: tuple[str, ...]

    def message(self) -> str:
        return f"{self.file}: {_count(self.tensors, 'missing')}"

    @property
    def remedy(self) -> str:
        return "The file is incomplete or of another architecture than it says; fetch it again."


@dataclass(eq=False, repr=False)
class UnexpectedTensors(OstinatoError, ValueError):
    """The file holds tensors that the model's definition doesn't use: running without them would be wrong."""

    file: str
    tensors: tuple[str, ...]

    def message(self) -> str:
        return f"{self.file}: {_count(self.tensors, 'not part of this architecture')}"

    @property
    def remedy(self) -> str:
        return "The model has a feature that ostinato doesn't know; use another model."


@dataclass(eq=False, repr=False)
class TensorShapeMismatch(OstinatoError, ValueError):
    """A tensor's shape contradicts the model's description; shapes are row-major."""

    file: str
    tensor: str
    expected: tuple[int, ...]
    got: tuple[int, ...]

    def message(self) -> str:
        return f"{self.file}: tensor {self.tensor} has shape {list(self.got)}, expected {list(self.expected)}"

    @property
    def remedy(self) -> str:
        return "The file's metadata and tensors disagree; fetch it again."


@dataclass(eq=False, repr=False)
class NotEnoughMemory(OstinatoError, MemoryError):
    """The model with the wanted context doesn't fit; said before anything is loaded. Bytes."""

    need: int
    free: int
    context: int
    fits: int

    def message(self) -> str:
        return f"a context of {self.context} needs {_gib(self.need)}, {_gib(self.free)} are free"

    @property
    def remedy(self) -> str:
        if self.fits > 0:
            return f"The largest context that fits is {self.fits} (--context {self.fits})."
        return "The weights alone don't fit; use a smaller model or close other programs."


def _count(names: tuple[str, ...], what: str) -> str:
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"{len(names)} tensor{'s' if len(names) != 1 else ''} {what}: {shown}"


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
