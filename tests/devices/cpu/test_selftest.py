"""The start-up self-test: right sets pass, wrong arithmetic is refused before anything runs on it."""

from __future__ import annotations

import pytest

from ostinato.devices.cpu import selftest
from ostinato.devices.cpu.engine import Engine
from ostinato.devices.cpu.isa import ISAS, host_features
from ostinato.devices.cpu.kernels import dot
from ostinato.errors import SelfTestFailed

HOST = [isa for isa in ISAS.values() if isa.requires <= host_features()]


@pytest.mark.parametrize("isa", HOST, ids=lambda isa: isa.name)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_set_of_this_host_passes(isa, threads):
    selftest.check(Engine(isa, None, threads))


def test_wrong_products_are_refused(monkeypatch):
    right = dot.dot4

    def wrong(f, isa, acc, unsigned, signed, limit):
        return right(f, isa, acc, unsigned, signed, limit) + 1

    monkeypatch.setattr(dot, "dot4", wrong)
    with pytest.raises(SelfTestFailed, match="compute wrong results") as caught:
        selftest.check(Engine(HOST[0], None, 1))
    assert caught.value.name == HOST[0].name
    assert "OSTINATO_CPU" in caught.value.remedy
