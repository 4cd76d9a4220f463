"""No collections while a command starts; afterwards as before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ostinato.host.collector import Starting


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_until_the_start_is_over() -> None:
    with Starting() as starting:
        assert not gc.isenabled()
        starting.over()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 1000
        gc.unfreeze()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0, "once"


def test_it_is_over_with_the_context_whatever_ends_it() -> None:
    with pytest.raises(KeyError), Starting():
        raise KeyError
    assert gc.isenabled()


def test_who_collects_nothing_goes_on_so() -> None:
    gc.disable()
    with Starting() as starting:
        starting.over()
        assert not gc.isenabled()
    assert not gc.isenabled()
    assert gc.get_freeze_count() == 0
