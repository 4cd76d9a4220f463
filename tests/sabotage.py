"""Disabling a guard and watching its test go red, in process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def goes_red(
    monkeypatch: pytest.MonkeyPatch, owner: object, guard: str, replacement: Any, check: Callable[[], object]
) -> None:
    """`check` passes as things are, and fails once `owner.guard` is `replacement`."""
    check()
    with monkeypatch.context() as patch:
        patch.setattr(owner, guard, replacement)
        with pytest.raises((Exception, pytest.fail.Exception)):
            check()


def nothing(*_: object, **__: object) -> None:
    """A guard that lets everything pass."""
