"""The token loop: where it stops, what it leaves behind, what it refuses before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ostinato.decode.borrowed import BorrowedLogits
from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.want import Argmax, Last
from ostinato.engine import memory, token_loop
from ostinato.engine.llm import LLM
from ostinato.engine.pool import run_step
from ostinato.engine.receipt import Receipt
from ostinato.engine.token_loop import CacheHold, generate_tokens
from ostinato.errors import (
    CacheChanged,
    CacheMismatch,
    CapacityExceeded,
    EmptyPrompt,
    InvalidLogits,
    InvalidSetting,
    PromptTooLong,
    TokenOutOfRange,
)
from ostinato.generate.sampler import Sampler
from ostinato.generate.settings import Sampling
from ostinato.ir import encoding as enc
from sabotage import NOTICED, goes_red, nothing

GREEDY = Sampling(temperature=0.0)
WILD = Sampling(temperature=3.0, top_p=1.0, min_p=0.0, seed=11)
PROMPT = [104, 101, 108, 108, 111]


def tokens_of(
    llm: LLM,
    prompt: list[int],
    cache: KvCache,
    *,
    sampling: Sampling = GREEDY,
    max_tokens: int | None = None,
    end_ids: frozenset[int] = frozenset(),
    receipt: Receipt | None = None,
) -> Any:
    return generate_tokens(
        llm.model, prompt, cache, llm.inference, Sampler(sampling),
        max_tokens=max_tokens, end_ids=end_ids, receipt=receipt or Receipt(),
    )  # fmt: skip


def by_hand(llm: LLM, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens, each from a forward of everything so far over a cache of its own."""
    tokens = list(prompt)
    for _ in range(count):
        cache = llm.new_cache()
        logits = forward_with_kv_context(llm.model, tokens, cache, llm.inference)
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def next_logits(llm: LLM, cache: KvCache, token: int = 65) -> np.ndarray[Any, Any]:
    """What the cache's contents lead to; the cache is as before."""
    logits = forward_with_kv_context(llm.model, [token], cache, llm.inference)
    cache.truncate_to(cache.length - 1)
    return logits


def replayed(llm: LLM, tokens: list[int]) -> KvCache:
    cache = llm.new_cache()
    forward_with_kv_context(llm.model, tokens, cache, llm.inference)
    return cache


# Where it stops


def test_greedy_tokens_are_those_of_the_logits(llm: LLM) -> None:
    assert list(tokens_of(llm, PROMPT, llm.new_cache(), max_tokens=12)) == by_hand(llm, PROMPT, 12)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_max_tokens(llm: LLM, count: int) -> None:
    cache, receipt = llm.new_cache(), Receipt()
    tokens = list(tokens_of(llm, PROMPT, cache, max_tokens=count, receipt=receipt))
    assert len(tokens) == receipt.tokens == count
    assert receipt.finish_reason == "length"
    assert receipt.decode_steps == count - 1
    assert cache.length == len(PROMPT) + count - 1  # the last token never ran


@pytest.mark.parametrize("prompt_length", [1, 5, 63, 64])
def test_a_context_is_filled_to_exactly_its_capacity(llm: LLM, prompt_length: int) -> None:
    cache, receipt = llm.new_cache(), Receipt()
    tokens = list(tokens_of(llm, [65] * prompt_length, cache, receipt=receipt))
    assert receipt.finish_reason == "context"
    assert cache.length == cache.capacity == 64
    assert len(tokens) == receipt.tokens == 64 - prompt_length + 1


def test_max_tokens_and_context_at_once_is_length(llm: LLM) -> None:
    receipt = Receipt()
    list(tokens_of(llm, [65] * 60, llm.new_cache(), max_tokens=5, receipt=receipt))
    assert receipt.finish_reason == "length"


@pytest.mark.parametrize("at", [0, 3])
def test_the_end_token_stops_and_is_not_yielded(llm: LLM, at: int) -> None:
    expected = by_hand(llm, PROMPT, 6)
    assert expected[at] not in expected[:at]
    cache, receipt = llm.new_cache(), Receipt()
    tokens = list(tokens_of(llm, PROMPT, cache, end_ids=frozenset([expected[at]]), receipt=receipt))
    assert tokens == expected[:at]
    assert (receipt.tokens, receipt.finish_reason, receipt.decode_steps) == (at, "stop", at)
    assert cache.length == len(PROMPT) + at


def test_the_receipt_tells_what_was_done(llm: LLM) -> None:
    receipt = Receipt()
    running = tokens_of(llm, PROMPT, llm.new_cache(), sampling=WILD, max_tokens=4, receipt=receipt)
    assert (receipt.prompt_tokens, receipt.tokens, receipt.finish_reason) == (5, 0, "interrupted")
    next(running)
    assert receipt.seconds_to_first > 0
    assert receipt.tokens_per_second == 0.0
    list(running)
    assert receipt.seed == WILD.seed
    assert receipt.tokens_per_second == pytest.approx(3 / receipt.decode_seconds)
    assert receipt.as_dict()["tokens_per_second"] == receipt.tokens_per_second
    greedy = Receipt()
    list(tokens_of(llm, PROMPT, llm.new_cache(), max_tokens=1, receipt=greedy))
    assert greedy.seed is None  # there was nothing to draw


# Chunks


@pytest.mark.parametrize("chunk", [1, 2, 5, 7, 23, 24, 25, 512])
def test_a_prompt_in_chunks_is_the_same_prompt(llm: LLM, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    prompt = [(7 * i) % 256 for i in range(24)]
    expected = by_hand(llm, prompt, 6)
    monkeypatch.setattr(memory, "CHUNK", chunk)
    cache = llm.new_cache()
    assert list(tokens_of(llm, prompt, cache, max_tokens=6)) == expected
    again = next_logits(llm, replayed(llm, prompt + expected[:5]))
    assert next_logits(llm, cache).tobytes() == again.tobytes()  # the default device's bit contract


@pytest.mark.parametrize(
    ("sampling", "kinds"), [(GREEDY, {Last: 1, Argmax: 6}), (WILD, {Last: 5, Argmax: 2})]
)
def test_logits_are_asked_for_only_where_they_are_drawn_from(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, sampling: Sampling, kinds: dict[type, int]
) -> None:
    """And then they are borrowed. The first ones are looked at in any case; chunks before them need none."""
    seen: Counter[type] = Counter()

    def watched(*arguments: Any, want: Any, borrow: bool = False) -> Any:
        seen[type(want)] += 1
        assert borrow == isinstance(want, Last)
        return run_step(*arguments, want=want, borrow=borrow)

    monkeypatch.setattr(token_loop, "run_step", watched)
    monkeypatch.setattr(memory, "CHUNK", 2)
    assert len(list(tokens_of(llm, PROMPT, llm.new_cache(), sampling=sampling, max_tokens=5))) == 5
    assert seen == kinds


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every step."""
    seen = []

    def watched(model: Any, tokens: Any, *rest: Any, **kind: Any) -> Any:
        seen.append(len(tokens))
        return run_step(model, tokens, *rest, **kind)

    monkeypatch.setattr(token_loop, "run_step", watched)
    return seen


def test_chunks_bound_the_rows_of_a_step(llm: LLM, monkeypatch: pytest.MonkeyPatch, rows: list[int]) -> None:
    monkeypatch.setattr(memory, "CHUNK", 10)
    list(tokens_of(llm, [65] * 23, llm.new_cache(), max_tokens=3))
    assert rows == [10, 10, 3, 1, 1]


def test_a_step_has_512_rows_at_most(llm: LLM, rows: list[int]) -> None:
    cache = KvCache.allocate(llm.model, llm.inference, 1100)
    list(tokens_of(llm, [65] * 1100, cache, max_tokens=1))
    assert rows == [512, 512, 76]


def test_rows_become_fewer_as_the_scores_of_one_grow(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, rows: list[int]
) -> None:
    """Where a device keeps them all; one with a kernel for attention takes as many rows at every length."""
    heads, most = llm.model.config.heads, 4000
    monkeypatch.setattr(memory, "CHUNK", 32)
    monkeypatch.setattr(memory, "SCORES", most)
    list(tokens_of(llm, [65] * 100, KvCache.allocate(llm.model, llm.inference, 1050), max_tokens=1))
    assert rows == [32, 32, 32, 4]
    rows.clear()
    llm = LLM(llm.file.path, device="reference")
    cache = KvCache.allocate(llm.model, llm.inference, 1050)
    list(tokens_of(llm, [65] * 1050, cache, max_tokens=1))
    assert sum(rows) == 1050
    scores = [heads * count * sum(rows[: at + 1]) for at, count in enumerate(rows)]
    assert all(score <= most or count == 1 for score, count in zip(scores, rows, strict=True))
    assert max(scores[:-20]) > most / 2  # and not fewer than need be
    assert rows[0] > 20
    assert rows[-1] == 1


# What it refuses, before anything runs or changes

REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"prompt": []}, EmptyPrompt, "empty"),
    ({"prompt": [65] * 65}, PromptTooLong, "65 tokens, the context holds 64"),
    ({"prompt": [1, 260]}, TokenOutOfRange, "token 260"),
    ({"prompt": [1, -1]}, TokenOutOfRange, "token -1"),
    ({"max_tokens": 0}, InvalidSetting, "max_tokens is 0"),
    ({"max_tokens": -5}, InvalidSetting, "max_tokens is -5"),
    ({"max_tokens": 2.5}, InvalidSetting, "max_tokens is 2.5"),
    ({"max_tokens": True}, InvalidSetting, "max_tokens is True"),
]


def refuses(llm: LLM, case: tuple[dict[str, Any], type[Exception], str], monkeypatch: Any) -> None:
    changes, error, text = case
    cache = replayed(llm, [1, 2, 3])
    cache.truncate_to(0 if error is PromptTooLong else 3)
    before = cache.length
    with monkeypatch.context() as patch:
        patch.setattr(memory, "CHUNK", 1)  # so that a late check would have run a part
        with pytest.raises(error, match=text):
            tokens_of(llm, changes.get("prompt", PROMPT), cache, max_tokens=changes.get("max_tokens"))
    assert cache.length == before


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[1].__name__}: {case[2]}")
def test_refused_at_once(llm: LLM, case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses(llm, case, monkeypatch)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[1].__name__}: {case[2]}")
def test_sabotage_check_prompt(llm: LLM, case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(monkeypatch, token_loop, "check_prompt", nothing, lambda: refuses(llm, case, monkeypatch))


def test_room_counts_what_the_cache_holds(llm: LLM) -> None:
    cache = replayed(llm, [65] * 60)
    with pytest.raises(PromptTooLong) as raised:
        tokens_of(llm, PROMPT, cache)
    assert (raised.value.tokens, raised.value.context) == (65, 64)
    assert len(list(tokens_of(llm, PROMPT[:4], cache))) == 1


def test_a_cache_of_another_geometry_is_refused_at_once(llm: LLM) -> None:
    other = LLM(llm.file.path.with_name("tiny-llama-llama3.gguf")).new_cache()
    with pytest.raises(CacheMismatch, match="kv_heads"):
        tokens_of(llm, PROMPT, other)


def test_sabotage_check_cache(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(monkeypatch, token_loop, "check_cache", nothing,
             lambda: test_a_cache_of_another_geometry_is_refused_at_once(llm))  # fmt: skip


# A cache that someone else changes


def woven_over_one_cache(llm: LLM) -> None:
    alone = by_hand(llm, PROMPT, 6)
    cache = llm.new_cache()
    first, second = tokens_of(llm, PROMPT, cache, max_tokens=6), tokens_of(llm, [9, 9], cache, max_tokens=6)
    started = next(first)
    alloc_id, length = cache.alloc_id, cache.length
    with pytest.raises(CacheChanged, match="holds 5 positions, this generation left 0") as raised:
        next(second)
    assert (raised.value.expected, raised.value.got) == ((alloc_id, 0), (alloc_id, 5))
    assert cache.length == length  # nothing was run
    assert [started, *first] == alone  # the first never noticed


def cleared_half_way(llm: LLM) -> None:
    cache, receipt = llm.new_cache(), Receipt()
    running = tokens_of(llm, PROMPT, cache, receipt=receipt)
    next(running)
    cache.clear()
    with pytest.raises(CacheChanged, match="cleared"):
        next(running)
    assert cache.length == 0
    assert receipt.finish_reason == "interrupted"


def cut_half_way(llm: LLM) -> None:
    cache = llm.new_cache()
    running = tokens_of(llm, PROMPT, cache)
    next(running)
    cache.truncate_to(3)
    with pytest.raises(CacheChanged, match="holds 3 positions, this generation left 5"):
        next(running)


def filled_by_another(llm: LLM) -> None:
    """Full it is, and yet this generation didn't end because of it."""
    cache, receipt = llm.new_cache(), Receipt()
    running = tokens_of(llm, PROMPT, cache, receipt=receipt)
    next(running)
    list(tokens_of(llm, [65] * (64 - cache.length), cache, max_tokens=1))
    assert cache.length == cache.capacity
    with pytest.raises(CacheChanged):
        next(running)
    assert receipt.finish_reason == "interrupted"


CHANGES = [woven_over_one_cache, cleared_half_way, cut_half_way, filled_by_another]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_cache_is_noticed_before_a_step(llm: LLM, change: Callable[[LLM], None]) -> None:
    change(llm)


@pytest.mark.parametrize("change", CHANGES)
def test_sabotage_check_of_the_hold(
    llm: LLM, change: Callable[[LLM], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = (*NOTICED, CapacityExceeded)  # where the step itself is what fails
    goes_red(monkeypatch, CacheHold, "check", nothing, lambda: change(llm), expect=late)


# Errors and interruptions half-way


class Broken(RuntimeError):
    pass


def failing_at(step: int, error: BaseException) -> Callable[..., Any]:
    """A forward whose `step`-th call fails."""
    calls = 0

    def forward(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == step + 1:
            raise error
        return run_step(*arguments, **options)

    return forward


def drain(running: Iterator[int], into: list[int]) -> None:
    for token in running:
        into.append(token)


@pytest.mark.parametrize("error", [Broken(), KeyboardInterrupt()])
@pytest.mark.parametrize("step", [0, 1, 4])
def test_a_step_that_fails_leaves_a_cache_to_go_on_with(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException
) -> None:
    expected = by_hand(llm, PROMPT, 8)
    cache, receipt, tokens = llm.new_cache(), Receipt(), []
    with monkeypatch.context() as patch:
        patch.setattr(token_loop, "run_step", failing_at(step, error))
        with pytest.raises(type(error)):
            drain(tokens_of(llm, PROMPT, cache, receipt=receipt), tokens)
    assert tokens == expected[:step]
    assert receipt.finish_reason == "interrupted"
    held = (PROMPT + tokens)[: cache.length]
    rest = (PROMPT + tokens)[cache.length :]
    assert len(held) == cache.length
    assert tokens + list(tokens_of(llm, rest, cache, max_tokens=8 - step)) == expected


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_loop_dropped_half_way_leaves_a_cache_to_go_on_with(llm: LLM, after: int) -> None:
    expected = by_hand(llm, PROMPT, 9)
    cache, receipt = llm.new_cache(), Receipt()
    running = tokens_of(llm, PROMPT, cache, receipt=receipt)
    tokens = [next(running) for _ in range(after)]
    running.close()
    assert receipt.finish_reason == "interrupted"
    assert cache.length == (len(PROMPT) + after - 1 if after else 0)
    rest = (PROMPT + tokens)[cache.length :]
    assert tokens + list(tokens_of(llm, rest, cache, max_tokens=9 - after)) == expected


@pytest.mark.parametrize("sampling", [GREEDY, WILD])
def test_a_damaged_model_says_so_in_its_first_step(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, sampling: Sampling
) -> None:
    def forward(*arguments: Any, **options: Any) -> Any:
        result = run_step(*arguments, **options)
        return result if isinstance(result, int) else BorrowedLogits(np.full_like(result.array, np.nan))

    monkeypatch.setattr(token_loop, "run_step", forward)
    with pytest.raises(InvalidLogits):
        next(tokens_of(llm, PROMPT, llm.new_cache(), sampling=sampling))


# Requests beside each other


def test_woven_requests_are_as_if_alone(llm: LLM) -> None:
    other = Sampling(temperature=3.0, top_p=1.0, min_p=0.0, seed=12)
    alone = [list(tokens_of(llm, PROMPT, llm.new_cache(), sampling=s, max_tokens=9)) for s in (WILD, other)]
    assert alone[0] != alone[1]
    running = [tokens_of(llm, PROMPT, llm.new_cache(), sampling=s, max_tokens=9) for s in (WILD, other)]
    woven = list(zip(*running, strict=True))
    assert [list(tokens) for tokens in zip(*woven, strict=True)] == alone


def test_f16_cache(llm: LLM) -> None:
    half = KvCache.allocate(llm.model, llm.inference, 64, enc.F16)
    assert len(list(tokens_of(llm, PROMPT, half))) == 60
