"""The `OSTINATO_*` environment variables, read when asked so that a change is seen at once."""

from __future__ import annotations

import os
from pathlib import Path

_OFF = frozenset({"", "0", "false", "no", "off"})


def flag(name: str) -> bool:
    """Whether the switch `name` is on.

    Unset, empty, `0`, `false`, `no` and `off` are off; anything else is on, so that a misspelt wish to stay
    offline never reaches the network.
    """
    return os.environ.get(name, "").strip().lower() not in _OFF


def offline() -> bool:
    """Whether `OSTINATO_OFFLINE` forbids all network."""
    return flag("OSTINATO_OFFLINE")


def cache_dir() -> Path | None:
    """The absolute folder that `OSTINATO_CACHE_DIR` names, or None when it is unset or empty."""
    value = os.environ.get("OSTINATO_CACHE_DIR")
    return Path(os.path.expanduser(value)).absolute() if value else None


def instruction_set() -> str | None:
    """The instruction set that `OSTINATO_CPU` asks for, or None when it is unset or empty."""
    return os.environ.get("OSTINATO_CPU", "").strip().lower() or None


def pin() -> bool:
    """Whether `OSTINATO_PIN` asks that each worker thread stay on one CPU."""
    return flag("OSTINATO_PIN")


def threads() -> int | None:
    """The thread count that `OSTINATO_THREADS` asks for, or None when it is unset or empty.

    Raises `ValueError` for anything that is not a whole number of at least 1.
    """
    value = os.environ.get("OSTINATO_THREADS", "").strip()
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and int(value) > 0):
        raise ValueError(f"OSTINATO_THREADS={value!r} is not a whole number of at least 1")
    return int(value)
