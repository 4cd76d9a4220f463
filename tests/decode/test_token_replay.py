"""The short way of a captured token: taken only where the long one would come to the same replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from decode.sessionkit import CAPTURED, micro_llama, same_bits, world
from ostinato.decode.proven import ProvenRequest
from ostinato.decode.replay import TokenReplay
from ostinato.decode.slot import DecodeSlot, retire_capture
from ostinato.decode.want import Argmax
from ostinato.errors import CapacityExceeded, TokenOutOfRange
from ostinato.runtime.context import InferenceContext
from sabotage import NOTICED, goes_red

pytestmark = pytest.mark.usefixtures("one_thread")


class Case:
    """A slot whose last token was captured, and the request that would follow."""

    def __init__(self, capacity: int = 16, where: str = "cpu") -> None:
        self.place = world(where)
        self.model = micro_llama()
        self.cache = self.place.cache(self.model, capacity=capacity)
        self.context = self.place.context
        self.slot = DecodeSlot()
        self.tokens: Any = [3]
        CAPTURED(self.model, [1, 2], self.cache, self.place, self.slot)
        CAPTURED(self.model, [5], self.cache, self.place, self.slot)
        assert self.slot.replay is not None
        self.replay: TokenReplay = self.slot.replay

    def covered(self) -> bool:
        return self.replay.covers(self.model, self.tokens, self.cache, self.context, None, self.slot)


def fill(case: Case) -> None:
    case.cache.advance(case.cache.capacity - case.cache.length)


def rebind(case: Case) -> None:
    """Another hand re-binds the session that the capture is of."""
    assert case.slot.session is not None
    assert case.slot.session.rebind_kv(case.place.cache(case.model, capacity=16)) is None


CHANGES: dict[str, Callable[[Case], object]] = {
    "two tokens": lambda case: setattr(case, "tokens", [3, 4]),
    "no token": lambda case: setattr(case, "tokens", []),
    "a token below": lambda case: setattr(case, "tokens", [-1]),
    "a token above": lambda case: setattr(case, "tokens", [case.model.config.vocab_size]),
    "another kind of number": lambda case: setattr(case, "tokens", [np.int64(3)]),
    "a bool": lambda case: setattr(case, "tokens", [True]),
    "another cache": lambda case: setattr(case, "cache", case.place.cache(case.model, capacity=16)),
    "a cleared cache": lambda case: case.cache.clear(),
    "a full cache": fill,
    "another context": lambda case: setattr(
        case, "context", InferenceContext(case.context.location, case.context.devices)
    ),
    "another slot": lambda case: setattr(case, "slot", DecodeSlot()),
    "a retired capture": lambda case: retire_capture(case.slot),
    "a stale capture": rebind,
}


by_place = pytest.mark.parametrize("where", ["reference", "cpu"])


@by_place
@pytest.mark.parametrize("change", CHANGES)
def test_what_it_does_not_cover(change: str, where: str) -> None:
    case = Case(where=where)
    assert case.covered()
    CHANGES[change](case)
    assert not case.covered()


def check_equal_to_a_replan(where: str = "cpu", tokens: int = 6) -> None:
    """Token by token, by argmax and by logits, with cuts and another cache in between."""
    case = Case(where=where)
    other = case.place.cache(case.model, capacity=16)
    short = 0
    for step in range(tokens):
        for cache in (case.cache, other) if step % 3 == 2 else (case.cache,):
            short += case.slot.replay is not None
            expected = case.place.oracle(case.model, [step], cache)
            same_bits(CAPTURED(case.model, [step], cache, case.place, case.slot), expected)
            cache.truncate_to(cache.length - 1)
            likeliest = CAPTURED(case.model, [step], cache, case.place, case.slot, want=Argmax())
            assert type(likeliest) is int
            assert likeliest == expected.argmax()
    assert short > 2


@by_place
def test_equal_to_a_replan(where: str) -> None:
    check_equal_to_a_replan(where)


def test_bad_tokens_and_a_full_cache_are_refused_as_ever() -> None:
    case = Case(capacity=4)
    for token in (-1, case.model.config.vocab_size):
        with pytest.raises(TokenOutOfRange):
            CAPTURED(case.model, [token], case.cache, case.place, case.slot)
    CAPTURED(case.model, [3], case.cache, case.place, case.slot)
    before = case.cache.length
    with pytest.raises(CapacityExceeded):
        CAPTURED(case.model, [3], case.cache, case.place, case.slot)
    assert case.cache.length == before == 4


def test_a_run_that_fails_leaves_the_cache_and_the_right_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    pool = case.place.device().engine.pool
    length = case.cache.length
    with monkeypatch.context() as patch:
        patch.setattr(type(pool), "run", lambda *_: (_ for _ in ()).throw(RuntimeError("late")))
        with pytest.raises(RuntimeError, match="late"):
            CAPTURED(case.model, [3], case.cache, case.place, case.slot)
    assert case.cache.length == length
    expected = case.place.oracle(case.model, [3], case.cache)
    same_bits(CAPTURED(case.model, [3], case.cache, case.place, case.slot), expected)


def test_it_counts_as_a_captured_token() -> None:
    case = Case()
    counts = case.context.counters.total()
    before = (case.slot.statistics.captured, counts.realize_calls, counts.bytes_uploaded, case.slot.runs)
    CAPTURED(case.model, [3], case.cache, case.place, case.slot)
    counts = case.context.counters.total()
    after = (case.slot.statistics.captured, counts.realize_calls, counts.bytes_uploaded, case.slot.runs)
    assert after[0] == before[0] + 1
    assert after[1] == before[1] + 1
    assert after[2] > before[2]
    assert after[3] == before[3] + 1


def test_sabotage_a_short_way_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch, TokenReplay, "covers", lambda *_: True, check_equal_to_a_replan,
        expect=(*NOTICED, AttributeError),
    )  # fmt: skip


def test_sabotage_a_proof_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        case = Case()
        case.cache.clear()
        assert not case.covered()

    goes_red(monkeypatch, ProvenRequest, "covers", lambda *_: True, check)
