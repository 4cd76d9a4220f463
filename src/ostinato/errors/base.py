"""The root of every error that ostinato raises on purpose."""

from __future__ import annotations

from typing import Any


class OstinatoError(Exception):
    """Root of the taxonomy.

    An error is data: a subclass is a dataclass whose fields say what happened, `message()` makes the
    sentence from them, and `remedy` says what the reader can do. Its dataclass makes no more than
    `__init__`, as each start makes a hundred of them. A subclass also derives from the
    builtin a caller would expect (`ValueError`, `FileNotFoundError` ...) and survives pickling.

    >>> from dataclasses import dataclass
    >>> @dataclass(eq=False, repr=False)
    ... class TooHot(OstinatoError, ValueError):
    ...     degrees: int
    ...     def message(self) -> str:
    ...         return f"{self.degrees} degrees are too hot"
    >>> str(TooHot(99))
    '99 degrees are too hot'
    >>> TooHot(99)
    TooHot(degrees=99)
    """

    @property
    def remedy(self) -> str:
        """What the reader can do about it, one sentence; empty when there is nothing to say."""
        return ""

    def message(self) -> str:
        """One sentence made from the fields."""
        return type(self).__name__

    def fields(self) -> dict[str, Any]:
        """The fields by name, for logs and machine-readable reports."""
        names = getattr(self, "__dataclass_fields__", {})
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        return self.message()

    def __repr__(self) -> str:
        fields = (f"{name}={value!r}" for name, value in self.fields().items())
        return f"{type(self).__name__}({', '.join(fields)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own reduction replays positional args and so loses keyword fields.
        return _rebuild, (type(self), self.fields()), dict(self.__dict__)


def _rebuild(cls: type[OstinatoError], fields: dict[str, Any]) -> OstinatoError:
    return cls(**fields)
