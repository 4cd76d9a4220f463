"""Typed getters on a file's settings, which fail with the file and the key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import NoReturn, TypeVar, overload

from ostinato.errors.formats import ModelFormatError

V = TypeVar("V")
D = TypeVar("D")


class _Unset(Enum):
    """The default that says a key is required; None stays usable as a default."""

    REQUIRED = 0


REQUIRED = _Unset.REQUIRED


class TypedMapping(Mapping[str, V]):
    """Read-only settings of `file`, in file order; `[]` gives the values as they are.

    A key whose value is None counts as missing. Each getter raises `ModelFormatError` with `field` =
    `prefix` and the key when the value has another type, and when it is missing and no default was given.
    """

    def __init__(self, values: Mapping[str, V], file: str, prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix
        self.file = file

    def __getitem__(self, key: str) -> V:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def text(self, key: str) -> str: ...
    @overload
    def text(self, key: str, default: D) -> str | D: ...
    def text(self, key: str, default: object = REQUIRED) -> object:
        """A string."""
        return self._get(key, "text", self._text, default)

    @overload
    def integer(self, key: str) -> int: ...
    @overload
    def integer(self, key: str, default: D) -> int | D: ...
    def integer(self, key: str, default: object = REQUIRED) -> object:
        """An integer; a bool or a float is none."""
        return self._get(key, "an integer", self._integer, default)

    @overload
    def number(self, key: str) -> float: ...
    @overload
    def number(self, key: str, default: D) -> float | D: ...
    def number(self, key: str, default: object = REQUIRED) -> object:
        """A float; an integer in the file counts as one."""
        return self._get(key, "a number", self._number, default)

    @overload
    def flag(self, key: str) -> bool: ...
    @overload
    def flag(self, key: str, default: D) -> bool | D: ...
    def flag(self, key: str, default: object = REQUIRED) -> object:
        """A bool."""
        return self._get(key, "a bool", self._flag, default)

    def _get(self, key: str, expected: str, read: Callable[[str, object], object], default: object) -> object:
        """The value of `key` as `read` checks it; `expected` is what a missing one should be."""
        value = self._values.get(key)
        if value is not None:
            return read(key, value)
        if default is REQUIRED:
            got = "null" if key in self._values else "no such key"
            raise ModelFormatError(self.file, self._prefix + key, expected, got)
        return default

    def _text(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            self._refuse(key, "text", value)
        return value

    def _integer(self, key: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            self._refuse(key, "an integer", value)
        return value

    def _number(self, key: str, value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            self._refuse(key, "a number", value)
        return float(value)

    def _flag(self, key: str, value: object) -> bool:
        if not isinstance(value, bool):
            self._refuse(key, "a bool", value)
        return value

    def _refuse(self, key: str, expected: str, value: object) -> NoReturn:
        raise ModelFormatError(self.file, self._prefix + key, expected, self._kind(value))

    @staticmethod
    @abstractmethod
    def _kind(value: object) -> str:
        """A value in a message."""
