"""Reading the small text files of a model folder; they come from strangers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeVar

from ostinato.errors.formats import ModelFileUnreadable
from ostinato.errors.text import TokenizerFormatError

MAX_FILE = 64 * 1024 * 1024
"""The largest file read, in bytes; the largest real tokenizer.json has some 35 million."""

T = TypeVar("T")

_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
}


class Folder:
    """The files of one model folder, each read at most once and handed out as it was parsed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._parsed: dict[str, dict[str, Any]] = {}

    def has(self, name: str) -> bool:
        # Anything but a file, a pipe for instance, is as good as absent.
        return (self.path / name).is_file()

    def bytes(self, name: str) -> bytes:
        """The contents of a file.

        Raises:
            ModelFileUnreadable: the operating system refuses.
            TokenizerFormatError: it is too large.
        """
        path = self.path / name
        try:
            with path.open("rb") as file:
                data = file.read(MAX_FILE + 1)
        except OSError as error:
            raise ModelFileUnreadable(str(path), error.strerror or str(error)) from error
        check_size(name, len(data))
        return data

    def text(self, name: str) -> str:
        """The contents of a file in UTF-8; raises as `bytes` does."""
        try:
            return self.bytes(name).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise TokenizerFormatError("the file", "UTF-8", str(error), file=name) from None

    def json(self, name: str) -> dict[str, Any]:
        """The object in a JSON file, empty where there is no such file; raises as `bytes` does."""
        if name not in self._parsed:
            self._parsed[name] = self._json(name) if self.has(name) else {}
        return self._parsed[name]

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads(self.text(name))
        except (ValueError, RecursionError) as error:
            if isinstance(error, TokenizerFormatError):
                raise
            raise TokenizerFormatError("the file", "JSON", str(error), file=name) from None
        return expect(value, dict, "the file", name)


def check_size(name: str, size: int) -> None:
    """The file is no larger than `MAX_FILE`."""
    if size > MAX_FILE:
        raise TokenizerFormatError("the file", f"at most {MAX_FILE} bytes", "more", file=name)


def expect(value: Any, kind: type[T], key: str, file: str = "tokenizer.json") -> T:
    """The value, which has to be of that JSON type.

    Raises:
        TokenizerFormatError: it is of another.
    """
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TokenizerFormatError(key, _NAMES[kind], type(value).__name__, file=file)
    return value


def member(
    owner: dict[str, Any], name: str, kind: type[T], default: T, where: str, file: str = "tokenizer.json"
) -> T:
    """`owner[name]`, which has to be of that JSON type; the default where it is missing or null."""
    value = owner.get(name)
    return default if value is None else expect(value, kind, f"{where}.{name}" if where else name, file)
