"""Many files here measure memory."""

from __future__ import annotations

import pytest

from settled import settled


@pytest.fixture(scope="module", autouse=True)
def _settled() -> None:
    settled()
