"""A model file's metadata: a mapping with typed getters that fail with the file and the key."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from ostinato.formats.typed import REQUIRED, D, TypedMapping

Numbers: TypeAlias = NDArray[Any]  # one-dimensional, numeric or bool, read-only
MetadataValue: TypeAlias = str | int | float | bool | list[str] | Numbers


class Metadata(TypedMapping[MetadataValue]):
    """Read-only metadata of `file`, in file order.

    Integers are of any width. Text that was no UTF-8 in the file has its bytes as lone surrogates
    (`surrogateescape`). Each getter raises `ModelFormatError` with `field` = the key when the value has
    another type, and when it is missing and no default was given.

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
        super().__init__(values, file)
        self._widths = widths

    def typed(self) -> dict[str, MetadataValue | np.generic]:
        """The values with every number as a numpy scalar of the file's own width, for an exact copy."""
        widths = self._widths
        return {key: widths[key].type(value) if key in widths else value for key, value in self.items()}

    def __repr__(self) -> str:
        return f"Metadata({len(self)} keys of {self.file})"

    @overload
    def texts(self, key: str) -> list[str]: ...
    @overload
    def texts(self, key: str, default: D) -> list[str] | D: ...
    def texts(self, key: str, default: object = REQUIRED) -> object:
        """An array of strings; the list is the metadata's own, not to be changed."""
        return self._get(key, "an array of text", self._texts, default)

    @overload
    def numbers(self, key: str) -> Numbers: ...
    @overload
    def numbers(self, key: str, default: D) -> Numbers | D: ...
    def numbers(self, key: str, default: object = REQUIRED) -> object:
        """An array of numbers or bools in the file's own width: `[count]`, read-only."""
        return self._get(key, "an array of numbers", self._numbers, default)

    def _texts(self, key: str, value: object) -> list[str]:
        if not isinstance(value, list):
            self._refuse(key, "an array of text", value)
        return value

    def _numbers(self, key: str, value: object) -> Numbers:
        if not isinstance(value, np.ndarray):
            self._refuse(key, "an array of numbers", value)
        return value

    @staticmethod
    def _kind(value: object) -> str:
        if isinstance(value, np.ndarray):
            return f"an array of {value.dtype}"
        return "an array of text" if isinstance(value, list) else f"{type(value).__name__} {value!r}"
