"""Logits that the token loop reads where the device left them: until the next step, not a moment longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from decode.sessionkit import (
    ALONE,
    CAPTURED,
    FRAIL,
    HELD,
    HOMES,
    World,
    micro_llama,
    same_bits,
    tokens_of,
    world,
)  # fmt: skip
from devices.delayed import InjectedFailure
from devices.running import raw
from ostinato.decode.borrowed import BorrowedLogits
from ostinato.decode.capture import CapturedDecodeSession
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import LAST
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.engine.pool import PlanMode, run_step
from ostinato.errors import StaleLogits
from ostinato.models.contract import Model
from sabotage import goes_red, nothing

pytestmark = pytest.mark.usefixtures("one_thread")

by_mode = pytest.mark.parametrize("mode", PlanMode, ids=lambda mode: mode.value)
WITHOUT_REPLAN = [PlanMode.HELD, PlanMode.CAPTURED]


class Loop:
    """One generation's slot and cache, with five positions and warm plans."""

    def __init__(self, where: str, mode: PlanMode, **options: Any) -> None:
        self.place, self.model, self.slot, self.mode = (
            world(where, **options),
            micro_llama(),
            DecodeSlot(),
            mode,
        )
        self.cache = self.place.cache(self.model)
        for step in (tokens_of(3), [4], [5]):
            self.borrow(step)

    def borrow(self, tokens: list[int]) -> BorrowedLogits:
        return run_step(
            self.model, tokens, self.cache, self.place.context, self.slot, self.mode, want=LAST, borrow=True
        )

    def expected(self, tokens: list[int]) -> Any:
        return self.place.oracle(self.model, tokens, self.cache)


@by_mode
@pytest.mark.parametrize("where", HOMES)
def test_they_are_the_step_s_logits(where: str, mode: PlanMode) -> None:
    loop = Loop(where, mode)
    for step in ([7], tokens_of(4), [8], [9]):
        expected = loop.expected(step)
        lent = loop.borrow(step)
        same_bits(lent.array, expected)
        same_bits(lent.array, expected)  # as often as one likes


def add_a_device(loop: Loop) -> None:
    loop.place.devices.register(ReferenceDevice(7))
    loop.borrow([1])


def swap_the_cache(loop: Loop) -> None:
    loop.cache = loop.place.copy(loop.cache)
    loop.borrow([1])


def fail(loop: Loop) -> None:
    loop.place.device().fail_after = 8
    with pytest.raises(InjectedFailure):
        loop.borrow([1])


def lease(loop: Loop) -> None:
    with loop.slot.lease():
        pass


NEXT: dict[str, Callable[[Loop], object]] = {
    "a token": lambda loop: loop.borrow([1]),
    "several rows": lambda loop: loop.borrow([1, 2]),
    "a token whose logits are its own": lambda loop: HELD(loop.model, [1], loop.cache, loop.place, loop.slot),
    "a captured token": lambda loop: CAPTURED(loop.model, [1], loop.cache, loop.place, loop.slot),
    "one that is replanned": add_a_device,
    "one over another cache": swap_the_cache,
    "one that fails": fail,
    "the next lease": lease,
}


def check_stale(mode: PlanMode, name: str, where: str) -> None:
    loop = Loop(where, mode)
    lent = loop.borrow([6])
    kept = lent.array.copy()
    NEXT[name](loop)
    with pytest.raises(StaleLogits, match="has run since") as caught:
        _ = lent.array
    assert caught.value.lent < caught.value.current
    same_bits(kept, kept.copy())


@by_mode
@pytest.mark.parametrize("name", NEXT)
@pytest.mark.parametrize("where", FRAIL)
def test_the_next_step_ends_the_loan(mode: PlanMode, name: str, where: str) -> None:
    check_stale(mode, name, where)


@by_mode
def test_sabotage_the_check(mode: PlanMode, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(monkeypatch, BorrowedLogits, "check", nothing, lambda: check_stale(mode, "a token", "cpu"))


@by_mode
@pytest.mark.parametrize("where", ALONE)
def test_a_copy_stays(where: str, mode: PlanMode) -> None:
    loop = Loop(where, mode)
    expected = loop.expected([6])
    kept = loop.borrow([6]).array.copy()
    for step in ([7], [8, 9], [10]):
        loop.borrow(step)
    same_bits(kept, expected)


def output_of(loop: Loop) -> Any:
    """The buffer in which the decode plan leaves its logits."""
    runner = loop.slot.capture if loop.mode is PlanMode.CAPTURED else loop.slot.session
    assert runner is not None
    return raw(runner._bound.values[runner.logits_node].parts[0].data)


@pytest.mark.parametrize("mode", WITHOUT_REPLAN, ids=lambda mode: mode.value)
@pytest.mark.parametrize("where", ["reference", "cpu"])
def test_where_the_host_can_read_them_they_are_not_copied(
    mode: PlanMode, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(where, mode)
    copied: list[tuple[int, ...]] = []
    device = type(loop.place.device())
    download = device.download

    def watched(self: Any, storage: Any, shape: tuple[int, ...]) -> Any:
        copied.append(shape)
        return download(self, storage, shape)

    expected = loop.expected([6])
    monkeypatch.setattr(device, "download", watched)
    lent = loop.borrow([6])
    same_bits(lent.array, expected)
    assert copied == []
    assert np.shares_memory(lent.array, output_of(loop))
    with pytest.raises(ValueError, match="read-only"):
        lent.array[0] = 1


@pytest.mark.parametrize("mode", WITHOUT_REPLAN, ids=lambda mode: mode.value)
def test_elsewhere_they_are_a_copy_lent_on_the_same_terms(mode: PlanMode) -> None:
    loop = Loop("delayed", mode)
    lent = loop.borrow([6])
    assert not np.shares_memory(lent.array, output_of(loop))


def bare(where: str) -> tuple[World, Model, KvCache, Any, CapturedDecodeSession]:
    """A session and a capture of it, without a slot in between."""
    loop = Loop(where, PlanMode.CAPTURED)
    session, capture = loop.slot.session, loop.slot.capture
    assert session is not None
    assert capture is not None
    return loop.place, loop.model, loop.cache, session, capture


@pytest.mark.parametrize("where", ALONE)
def test_sessions_and_captures_lend_by_themselves(where: str) -> None:
    place, model, cache, session, capture = bare(where)
    data, env = session.data_of(np.array([6]), cache.length), session.per_token_sym_env(cache.length)
    other = session.data_of(np.array([9]), cache.length)
    expected = place.oracle(model, [6], cache)
    for borrow, run in (
        (lambda d: session.borrow_token(session.location, d, env),
         lambda d: session.realize_token(session.location, d, env)),
        (capture.borrow_token, capture.replay_token),
    ):  # fmt: skip
        lent = borrow(data)
        same_bits(lent.array, expected)
        assert run(other).tobytes() != expected.tobytes()
        with pytest.raises(StaleLogits):
            _ = lent.array
        lent = borrow(data)
        again = borrow(data)
        with pytest.raises(StaleLogits):
            _ = lent.array
        same_bits(again.array, expected)


@pytest.mark.parametrize("where", FRAIL)
def test_a_loan_outlives_the_plan_that_made_it(where: str) -> None:
    """A re-bind leaves the old buffers to whoever still reads them."""
    place, model, cache, session, _ = bare(where)
    data, env = session.data_of(np.array([6]), cache.length), session.per_token_sym_env(cache.length)
    expected = place.oracle(model, [6], cache)
    lent = session.borrow_token(session.location, data, env)
    assert session.rebind_kv(place.copy(cache)) is None
    session.realize_token(session.location, data, env)
    same_bits(lent.array, expected)
