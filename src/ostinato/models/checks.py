"""Numbers from a stranger's description of a model, checked before they shape anything."""

from __future__ import annotations

from collections.abc import Sized

from ostinato.errors.formats import ModelFormatError
from ostinato.errors.model import UnsupportedModel
from ostinato.formats.gguf import Metadata
from ostinato.formats.safetensors import Config

MAX_EXTENT = 1 << 24
MAX_HEAD_DIM = 1 << 16
"""No known model comes near; numbers far above would cost memory before the tensors prove them wrong."""


Description = Metadata | Config
"""GGUF metadata or a checkpoint's config.json: typed getters that name file and key when they fail."""


def in_range(
    source: Description, key: str, *, low: int = 1, high: int = MAX_EXTENT, default: int | None = None
) -> int:
    """The integer at `key`; raises ModelFormatError when it's missing (without default) or out of range."""
    value = source.integer(key) if default is None else source.integer(key, default)
    if not low <= value <= high:
        raise ModelFormatError(source.file, key, f"{low} … {high}", str(value))
    return value


def layers_of(source: Description, key: str, tensors: Sized) -> int:
    """The number of layers; each has tensors, so a file of fewer tensors is wrong about it."""
    return in_range(source, key, high=len(tensors))


def head_dim_of(source: Description, key: str, *, default: int) -> int:
    """The width of a head."""
    return in_range(source, key, high=MAX_HEAD_DIM, default=default)


def eps_of(source: Description, key: str, default: float | None = None) -> float:
    """What a norm adds to a variance: a number that float32 holds, not negative."""
    value = source.number(key) if default is None else source.number(key, default)
    if not 0.0 <= value < 1e38:
        raise ModelFormatError(source.file, key, "a number of at least 0", str(value))
    return value


def one_of(source: Description, key: str, *allowed: int, default: int) -> int:
    """The integer at `key`, which the file's other numbers allow."""
    value = source.integer(key, default)
    if value not in allowed:
        shown = " or ".join(map(str, allowed[:8])) or "another number"
        raise ModelFormatError(source.file, key, shown, str(value))
    return value


def heads_of(source: Description, heads_key: str, kv_heads_key: str) -> tuple[int, int]:
    """Query heads and KV heads, which divide them."""
    heads = in_range(source, heads_key)
    kv_heads = in_range(source, kv_heads_key, default=heads)
    if heads % kv_heads:
        raise ModelFormatError(source.file, kv_heads_key, f"a divisor of the {heads} heads", str(kv_heads))
    return heads, kv_heads


def require(source: Description, key: str, value: object, expected: object) -> None:
    """Raises UnsupportedModel unless a setting has the one value that the family knows."""
    if value != expected:
        raise UnsupportedModel(source.file, key, str(expected), str(value))
