"""A model file's metadata: a mapping with typed getters that fail with the file and the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from ostinato.errors.formats import ModelFormatError

Numbers: TypeAlias = NDArray[Any]  # one-dimensional, numeric or bool, read-only
MetadataValue: TypeAlias = str | int | float | bool | list[str] | Numbers
D = TypeVar("D")


class _Unset(Enum):
    """The default that says a key is required; None stays usable as a default."""

    REQUIRED = 0


_REQUIRED = _Unset.REQUIRED


class Metadata(Mapping[str, MetadataValue]):
    """Read-only metadata of `file`, in file order.

    Each getter raises `ModelFormatError` with `field` = the key when the value has another type, and when
    it is missing and no default was given.

    >>> meta = Metadata({"llama.block_count": 30, "llama.rope.freq_base": 10000.0}, "tiny.gguf")
    >>> meta.integer("llama.block_count"), meta.number("llama.rope.freq_base"), meta.text("x", default=None)
    (30, 10000.0, None)
    """

    def __init__(
        self,
        values: Mapping[str, MetadataValue],
        file: str,
        widths: Mapping[str, np.dtype[Any]] = MappingProxyType({}),
    ) -> None:
        self._values = values
        self._widths = widths
        self.file = file

    def typed(self) -> dict[str, MetadataValue | np.generic]:
        """The values with every number as a numpy scalar of the file's own width, for an exact copy."""
        widths = self._widths
        return {key: widths[key].type(value) if key in widths else value for key, value in self.items()}

    def __getitem__(self, key: str) -> MetadataValue:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metadata({len(self)} keys of {self.file})"

    @overload
    def text(self, key: str) -> str: ...
    @overload
    def text(self, key: str, default: D) -> str | D: ...
    def text(self, key: str, default: object = _REQUIRED) -> object:
        """A string; bytes that were no UTF-8 in the file are lone surrogates (`surrogateescape`)."""
        value = self._find(key, "text", default)
        return self._checked(key, "text", value, isinstance(value, str) or value is default)

    @overload
    def integer(self, key: str) -> int: ...
    @overload
    def integer(self, key: str, default: D) -> int | D: ...
    def integer(self, key: str, default: object = _REQUIRED) -> object:
        """An integer of any width; a bool or a float is none."""
        value = self._find(key, "an integer", default)
        fits = isinstance(value, int) and not isinstance(value, bool)
        return self._checked(key, "an integer", value, fits or value is default)

    @overload
    def number(self, key: str) -> float: ...
    @overload
    def number(self, key: str, default: D) -> float | D: ...
    def number(self, key: str, default: object = _REQUIRED) -> object:
        """A float; an integer in the file counts as one."""
        value = self._find(key, "a number", default)
        if value is default:
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return self._checked(key, "a number", value, isinstance(value, float))

    @overload
    def flag(self, key: str) -> bool: ...
    @overload
    def flag(self, key: str, default: D) -> bool | D: ...
    def flag(self, key: str, default: object = _REQUIRED) -> object:
        """A bool."""
        value = self._find(key, "a bool", default)
        return self._checked(key, "a bool", value, isinstance(value, bool) or value is default)

    @overload
    def texts(self, key: str) -> list[str]: ...
    @overload
    def texts(self, key: str, default: D) -> list[str] | D: ...
    def texts(self, key: str, default: object = _REQUIRED) -> object:
        """An array of strings; the list is the metadata's own, not to be changed."""
        value = self._find(key, "an array of text", default)
        return self._checked(key, "an array of text", value, isinstance(value, list) or value is default)

    @overload
    def numbers(self, key: str) -> Numbers: ...
    @overload
    def numbers(self, key: str, default: D) -> Numbers | D: ...
    def numbers(self, key: str, default: object = _REQUIRED) -> object:
        """An array of numbers or bools in the file's own width: `[count]`, read-only."""
        value = self._find(key, "an array of numbers", default)
        fits = isinstance(value, np.ndarray)
        return self._checked(key, "an array of numbers", value, fits or value is default)

    def _find(self, key: str, expected: str, default: object) -> object:
        value = self._values.get(key, default)
        if value is _REQUIRED:
            raise ModelFormatError(self.file, key, expected, "no such key")
        return value

    def _checked(self, key: str, expected: str, value: object, fits: bool) -> object:
        if not fits:
            raise ModelFormatError(self.file, key, expected, _kind(value))
        return value


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return "an array of text" if isinstance(value, list) else f"{type(value).__name__} {value!r}"
