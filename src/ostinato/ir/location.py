"""Where bytes live: a kind of device and which one of it."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors.device import MalformedLocation


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A device's identity, written `kind:ordinal`."""

    kind: str
    ordinal: int = 0

    @classmethod
    def parse(cls, text: str) -> Location:
        """`"cpu"` or `"reference:1"`; MalformedLocation for anything else."""
        kind, colon, ordinal = text.partition(":")
        digits = ordinal.isascii() and ordinal.isdecimal()
        if not kind.isidentifier() or (colon and not digits):
            raise MalformedLocation(text)
        return cls(kind, int(ordinal) if colon else 0)

    def __str__(self) -> str:
        return f"{self.kind}:{self.ordinal}"


HOST = Location("host")
"""The caller's memory, as numpy arrays."""
