"""Numbers from a stranger's metadata, checked before they shape anything."""

from __future__ import annotations

from ostinato.errors.formats import ModelFormatError
from ostinato.formats.gguf import Metadata

MAX_EXTENT = 1 << 24
"""No dimension of any known model comes near; far above it, an arithmetic slip would cost all memory."""


def in_range(
    meta: Metadata, key: str, *, low: int = 1, high: int = MAX_EXTENT, default: int | None = None
) -> int:
    """The integer at `key`; raises ModelFormatError when it's missing (without default) or out of range."""
    value = meta.integer(key) if default is None else meta.integer(key, default)
    if not low <= value <= high:
        raise ModelFormatError(meta.file, key, f"{low} … {high}", str(value))
    return value


def one_of(meta: Metadata, key: str, *allowed: int, default: int | None = None) -> int:
    """The integer at `key`, which the other numbers of the file allow."""
    value = meta.integer(key) if default is None else meta.integer(key, default)
    if value not in allowed:
        raise ModelFormatError(
            meta.file, key, " or ".join(map(str, allowed[:8])) or "another number", str(value)
        )
    return value
