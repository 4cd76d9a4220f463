"""JSON from strangers: small, UTF-8, each key once, and whatever is wrong with it a `ModelFormatError`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

from ostinato.formats.regular import open_regular
from ostinato.formats.safetensors import guards

JsonValue: TypeAlias = bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"] | None


def read_object(path: Path, field: str, limit: int, *, constants: bool = False) -> dict[str, JsonValue]:
    """The JSON object in the file `path`, which has at most `limit` bytes; the rest as in `parse_object`."""
    with open_regular(path) as (handle, size):
        guards.check_text_size(str(path), size, limit)
        data = handle.read(size)
    return parse_object(data, str(path), field, constants=constants)


def parse_object(
    data: bytes, file: str, field: str, *, start: int = 0, constants: bool = False
) -> dict[str, JsonValue]:
    """The JSON object that `data` is; `field` names it in errors, whose offsets count from `start`.

    `constants` admits NaN and Infinity, which Python's writer makes of such floats.
    """

    def unique(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
        values = dict(pairs)
        guards.check_keys_unique(file, field, pairs, len(values))
        return values

    def integer(digits: str) -> int:
        guards.check_digits(file, field, digits)
        return int(digits)

    def constant(name: str) -> float:
        if not constants:
            guards.refuse_constant(file, field, name)
        return float(name)

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        guards.refuse_bytes(file, field, start + error.start, data[error.start])
    try:
        value: JsonValue = json.loads(
            text, object_pairs_hook=unique, parse_int=integer, parse_constant=constant
        )
    except json.JSONDecodeError as error:
        offset = start + len(text[: error.pos].encode("utf-8"))
        guards.refuse_syntax(file, field, offset, error.msg)
    except RecursionError:
        guards.refuse_depth(file, field)
    guards.check_object(file, field, value)
    assert isinstance(value, dict)
    guards.check_depth(file, field, value)
    return value
