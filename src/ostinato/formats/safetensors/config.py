"""A checkpoint's JSON settings: a mapping with typed getters that fail with the file and the dotted field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import NoReturn, TypeVar, overload

from ostinato.errors.formats import ModelFormatError
from ostinato.formats.safetensors import guards
from ostinato.formats.safetensors.files import read_text
from ostinato.formats.safetensors.strictjson import JsonValue, parse_object

D = TypeVar("D")


class _Unset(Enum):
    """The default that says a key is required; None stays usable as a default."""

    REQUIRED = 0


_REQUIRED = _Unset.REQUIRED


class Config(Mapping[str, JsonValue]):
    """Read-only settings of `file`, in file order; `[]` gives the plain JSON values.

    A key whose value is null counts as missing. Each getter raises `ModelFormatError` with `field` = the
    dotted key when the value has another type, and when it is missing and no default was given.

    >>> config = Config({"layers": 30, "head_dim": None, "rope": {"factor": 8.0}}, "config.json")
    >>> config.integer("layers"), config.integer("head_dim", None), config.section("rope").number("factor")
    (30, None, 8.0)
    """

    def __init__(self, values: Mapping[str, JsonValue], file: str, prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix
        self.file = file

    def __getitem__(self, key: str) -> JsonValue:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        where = f"{self._prefix[:-1]} in {self.file}" if self._prefix else self.file
        return f"Config({len(self)} keys of {where})"

    @overload
    def text(self, key: str) -> str: ...
    @overload
    def text(self, key: str, default: D) -> str | D: ...
    def text(self, key: str, default: object = _REQUIRED) -> object:
        """A string."""
        value = self._find(key, "text", default)
        return value if value is default else self._text(key, value)

    @overload
    def integer(self, key: str) -> int: ...
    @overload
    def integer(self, key: str, default: D) -> int | D: ...
    def integer(self, key: str, default: object = _REQUIRED) -> object:
        """An integer of at most 64 bits, signed; a bool or a float is none."""
        value = self._find(key, "an integer", default)
        return value if value is default else self._integer(key, value)

    @overload
    def number(self, key: str) -> float: ...
    @overload
    def number(self, key: str, default: D) -> float | D: ...
    def number(self, key: str, default: object = _REQUIRED) -> object:
        """A finite float; an integer in the file counts as one."""
        value = self._find(key, "a number", default)
        return value if value is default else self._number(key, value)

    @overload
    def flag(self, key: str) -> bool: ...
    @overload
    def flag(self, key: str, default: D) -> bool | D: ...
    def flag(self, key: str, default: object = _REQUIRED) -> object:
        """A bool."""
        value = self._find(key, "a bool", default)
        if value is not default and not isinstance(value, bool):
            self._refuse(key, "a bool", value)
        return value

    @overload
    def texts(self, key: str) -> tuple[str, ...]: ...
    @overload
    def texts(self, key: str, default: D) -> tuple[str, ...] | D: ...
    def texts(self, key: str, default: object = _REQUIRED) -> object:
        """A list of strings."""
        value = self._find(key, "a list of text", default)
        if value is default:
            return value
        return tuple(self._text(at, each) for at, each in self._items(key, "a list of text", value))

    @overload
    def integers(self, key: str) -> tuple[int, ...]: ...
    @overload
    def integers(self, key: str, default: D) -> tuple[int, ...] | D: ...
    def integers(self, key: str, default: object = _REQUIRED) -> object:
        """A list of integers; a lone one counts as a list, as in `eos_token_id`."""
        value = self._find(key, "a list of integers", default)
        if value is default:
            return value
        if isinstance(value, int):
            return (self._integer(key, value),)
        return tuple(self._integer(at, each) for at, each in self._items(key, "a list of integers", value))

    @overload
    def numbers(self, key: str) -> tuple[float, ...]: ...
    @overload
    def numbers(self, key: str, default: D) -> tuple[float, ...] | D: ...
    def numbers(self, key: str, default: object = _REQUIRED) -> object:
        """A list of finite numbers."""
        value = self._find(key, "a list of numbers", default)
        if value is default:
            return value
        return tuple(self._number(at, each) for at, each in self._items(key, "a list of numbers", value))

    def section(self, key: str) -> Config | None:
        """The nested settings `key`, or None when there are none."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self._refuse(key, "an object", value)
        return Config(value, self.file, f"{self._prefix}{key}.")

    def _find(self, key: str, expected: str, default: object) -> object:
        value = self._values.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            got = "null" if key in self._values else "no such key"
            raise ModelFormatError(self.file, self._prefix + key, expected, got)
        return default

    def _text(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            self._refuse(key, "text", value)
        return value

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

    def _refuse(self, key: str, expected: str, value: object) -> NoReturn:
        raise ModelFormatError(self.file, self._prefix + key, expected, guards.kind(value))


def read_config(path: Path) -> Config:
    """The settings in the file `path`."""
    data = read_text(path, guards.MAX_CONFIG_BYTES)
    return Config(parse_object(data, str(path), path.name, constants=True), str(path))
