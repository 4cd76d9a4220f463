"""What a step refuses before it changes anything."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors.base import OstinatoError


@dataclass(eq=False, repr=False)
class EmptyStep(OstinatoError, ValueError):
    """A step was asked to run no token."""

    def message(self) -> str:
        return "a step needs at least one token"


@dataclass(eq=False, repr=False)
class TokenOutOfRange(OstinatoError, ValueError):
    """A token id outside the model's vocabulary."""

    token: int
    vocab_size: int

    def message(self) -> str:
        return f"token {self.token} is outside the vocabulary 0 … {self.vocab_size - 1}"


@dataclass(eq=False, repr=False)
class CapacityExceeded(OstinatoError, ValueError):
    """A step would write past the end of the KV cache; positions."""

    needed: int
    capacity: int

    def message(self) -> str:
        return f"the step needs {self.needed} positions, the KV cache holds {self.capacity}"

    @property
    def remedy(self) -> str:
        return "Use a larger context, or shorten the prompt."


@dataclass(eq=False, repr=False)
class CacheMismatch(OstinatoError, ValueError):
    """A KV cache was made for another model's geometry; `field` is the first difference."""

    field: str
    expected: str
    got: str

    def message(self) -> str:
        difference = f"{self.field} is {self.got}, the model has {self.expected}"
        return f"the KV cache was made for another geometry: {difference}"

    @property
    def remedy(self) -> str:
        return "Allocate the cache with KvCache.allocate(model, ...)."


@dataclass(eq=False, repr=False)
class RowOutOfRange(OstinatoError, IndexError):
    """Output was asked for a row that the step doesn't have."""

    row: int
    rows: int

    def message(self) -> str:
        return f"row {self.row} was asked for, the step has rows 0 … {self.rows - 1}"


@dataclass(eq=False, repr=False)
class InvalidWant(OstinatoError, TypeError):
    """`want` is none of the things that a step can hand back."""

    got: str

    def message(self) -> str:
        return f"want is {self.got}, expected Last, All, Rows(indices), Hidden or Argmax"


@dataclass(eq=False, repr=False)
class InvalidTruncation(OstinatoError, ValueError):
    """A cache can only be cut to a length that it has reached."""

    wanted: int
    length: int

    def message(self) -> str:
        return f"a cache of length {self.length} can't be cut to {self.wanted}"


@dataclass(eq=False, repr=False)
class SlotBusy(OstinatoError, RuntimeError):
    """A decode slot was asked for by a second user while the first holds it."""

    def message(self) -> str:
        return "the decode slot is leased to another request"

    @property
    def remedy(self) -> str:
        return "Lease another slot of the pool, or wait until this one is released."


@dataclass(eq=False, repr=False)
class StaleCapture(OstinatoError, RuntimeError):
    """A capture was made over storages that its session is no longer bound to; nothing was run."""

    recorded: int
    current: int

    def message(self) -> str:
        return f"the capture was made in epoch {self.recorded} of its session, which is now in {self.current}"

    @property
    def remedy(self) -> str:
        return "Capture the session again."


@dataclass(eq=False, repr=False)
class StaleLogits(OstinatoError, RuntimeError):
    """Logits that a step had lent were used after the next one, which writes over them; steps, counted by
    whoever ran them."""

    lent: int
    current: int

    def message(self) -> str:
        return f"the logits were lent by step {self.lent}, and step {self.current} has run since"

    @property
    def remedy(self) -> str:
        return "Read borrowed logits before the next step, or ask for logits of your own (want=Last)."


@dataclass(eq=False, repr=False)
class TokenDataMismatch(OstinatoError, ValueError):
    """A step's data lacks a field that the plan reads, or has one that it can't take."""

    field: str
    expected: str
    got: str

    def message(self) -> str:
        return f"the token's data: {self.field} is {self.got}, expected {self.expected}"


@dataclass(eq=False, repr=False)
class CaptureNotPossible(OstinatoError, RuntimeError):
    """A plan can't be recorded over fixed addresses; the held plan works."""

    reason: str

    def message(self) -> str:
        return f"this plan can't be captured: {self.reason}"

    @property
    def remedy(self) -> str:
        return "Use the held plan (--plan held)."
