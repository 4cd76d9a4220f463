"""A checkpoint's JSON settings: a mapping with typed getters that fail with the file and the dotted field."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import overload

from ostinato.formats.safetensors import guards
from ostinato.formats.safetensors.strictjson import JsonValue, read_object
from ostinato.formats.typed import REQUIRED, D, TypedMapping


class Config(TypedMapping[JsonValue]):
    """Read-only settings of `file`, in file order; `[]` gives the plain JSON values.

    A key whose value is null counts as missing. Integers have at most 64 bits, signed; numbers are finite.
    Each getter raises `ModelFormatError` with `field` = the dotted key when the value has another type, and
    when it is missing and no default was given.

    >>> config = Config({"layers": 30, "head_dim": None, "rope": {"factor": 8.0}}, "config.json")
    >>> config.integer("layers"), config.integer("head_dim", None), config.section("rope").number("factor")
    (30, None, 8.0)
    """

    def __repr__(self) -> str:
        where = f"{self._prefix[:-1]} in {self.file}" if self._prefix else self.file
        return f"Config({len(self)} keys of {where})"

    @overload
    def texts(self, key: str) -> tuple[str, ...]: ...
    @overload
    def texts(self, key: str, default: D) -> tuple[str, ...] | D: ...
    def texts(self, key: str, default: object = REQUIRED) -> object:
        """A list of strings."""
        return self._get(key, "a list of text", self._texts, default)

    @overload
    def integers(self, key: str) -> tuple[int, ...]: ...
    @overload
    def integers(self, key: str, default: D) -> tuple[int, ...] | D: ...
    def integers(self, key: str, default: object = REQUIRED) -> object:
        """A list of integers; a lone one counts as a list, as in `eos_token_id`."""
        return self._get(key, "a list of integers", self._integers, default)

    @overload
    def numbers(self, key: str) -> tuple[float, ...]: ...
    @overload
    def numbers(self, key: str, default: D) -> tuple[float, ...] | D: ...
    def numbers(self, key: str, default: object = REQUIRED) -> object:
        """A list of finite numbers."""
        return self._get(key, "a list of numbers", self._numbers, default)

    def section(self, key: str) -> Config | None:
        """The nested settings `key`, or None when there are none."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self._refuse(key, "an object", value)
        return Config(value, self.file, f"{self._prefix}{key}.")

    def _texts(self, key: str, value: object) -> tuple[str, ...]:
        return tuple(self._text(at, each) for at, each in self._items(key, "a list of text", value))

    def _integers(self, key: str, value: object) -> tuple[int, ...]:
        if isinstance(value, int):
            return (self._integer(key, value),)
        return tuple(self._integer(at, each) for at, each in self._items(key, "a list of integers", value))

    def _numbers(self, key: str, value: object) -> tuple[float, ...]:
        return tuple(self._number(at, each) for at, each in self._items(key, "a list of numbers", value))

    def _integer(self, key: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
            self._refuse(key, "an integer of at most 64 bits", value)
        return value

    def _number(self, key: str, value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            self._refuse(key, "a finite number", value)
        return float(value)

    def _items(self, key: str, expected: str, value: object) -> Iterator[tuple[str, object]]:
        if not isinstance(value, list):
            self._refuse(key, expected, value)
        return ((f"{key}[{index}]", each) for index, each in enumerate(value))

    @staticmethod
    def _kind(value: object) -> str:
        return guards.kind(value)


def read_config(path: Path) -> Config:
    """The settings in the file `path`."""
    return Config(read_object(path, path.name, guards.MAX_CONFIG_BYTES, constants=True), str(path))
