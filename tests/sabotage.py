"""Disabling a guard and watching its test go red, in process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

NOTICED = (AssertionError, pytest.fail.Exception)
"""How a check says that it has seen the wrong thing; anything else is an accident on the way there."""


def goes_red(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    guard: str,
    replacement: Any,
    check: Callable[[], object],
    *,
    expect: type[BaseException] | tuple[type[BaseException], ...] = NOTICED,
) -> None:
    """`check` passes as things are, and fails once `owner.guard` is `replacement`.

    The failure is the check's own (`expect`). So a replacement takes every input that its guard takes: one
    that breaks down by itself proves nothing.
    """
    check()
    with monkeypatch.context() as patch:
        patch.setattr(owner, guard, replacement)
        with pytest.raises(expect):
            check()


def nothing(*_: object, **__: object) -> None:
    """A guard that lets everything pass."""
