"""Conversations: whatever happened before, an answer is the one of a conversation begun anew."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ostinato.decode.forward import forward_with_kv_context
from ostinato.engine import conversation as conversation_module
from ostinato.engine import memory, token_loop
from ostinato.engine.conversation import Answer, Conversation, Turn, common_prefix
from ostinato.engine.llm import LLM
from ostinato.engine.pool import run_step
from ostinato.errors import CacheChanged, ConversationBusy, InvalidSetting, PromptTooLong
from ostinato.generate.settings import Sampling
from sabotage import goes_red, nothing

GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def talker(fixtures_path: Path) -> LLM:
    """Room for a few turns."""
    return LLM(fixtures_path / "tiny-llama-bias.gguf", context=400)


@pytest.fixture(scope="module")
def fixtures_path() -> Path:
    return Path(__file__).parent.parent / "fixtures"


def fresh_answer(llm: LLM, messages: list[Any], text: str, max_tokens: int) -> str:
    return llm.chat(
        [*messages, {"role": "user", "content": text}], max_tokens=max_tokens, sampling=GREEDY
    ).text()


def ask(conversation: Conversation, text: str, max_tokens: int = 5) -> str:
    return "".join(conversation.ask(text, max_tokens=max_tokens, sampling=GREEDY))


def check_cache(conversation: Conversation) -> None:
    """The cache holds exactly `_held`: as many positions, and the same next logits as a fresh run of them."""
    cache, held, llm = conversation._cache, conversation._held, conversation._llm
    if cache is None:
        assert held == []
        return
    assert cache.length == len(held)
    if not 0 < cache.length < cache.capacity:
        return
    replayed = llm.new_cache()
    forward_with_kv_context(llm.model, held, replayed, llm.inference)
    both = []
    for one in (cache, replayed):
        both.append(forward_with_kv_context(llm.model, [65], one, llm.inference))
        one.truncate_to(len(held))
    np.testing.assert_allclose(*both, atol=1e-3)


def test_a_turn_joins_the_messages_when_it_is_complete(talker: LLM) -> None:
    talk = talker.conversation("Be brief.")
    running = talk.ask("hi", max_tokens=3, sampling=GREEDY)
    assert [message["role"] for message in talk.messages] == ["system"]
    answer = "".join(running)
    assert talk.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": answer},
    ]
    check_cache(talk)


def two_turns(llm: LLM) -> None:
    talk = llm.conversation()
    for text in ("hi", "and then?", "hello"):
        expected = fresh_answer(llm, talk.messages, text, 5)
        assert ask(talk, text) == expected
        check_cache(talk)


def test_answers_are_those_of_a_fresh_conversation(talker: LLM) -> None:
    two_turns(talker)


def keeps_prefix(llm: LLM) -> None:
    talk = llm.conversation()
    ask(talk, "hi")
    held = list(talk._held)
    assert len(held) == talk.receipt.prompt_tokens + talk.receipt.tokens - 1
    ids = llm.encode_chat([*talk.messages, {"role": "user", "content": "more"}])
    shared = common_prefix(held, ids)
    assert shared >= talk.receipt.prompt_tokens > 0
    rows = []
    real = token_loop.run_step

    def watched(model: Any, tokens: Any, *rest: Any, **want: Any) -> Any:
        rows.append(len(tokens))
        return real(model, tokens, *rest, **want)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_loop, "run_step", watched)
        ask(talk, "more", 1)
    assert rows == [len(ids) - shared]
    assert talk.receipt.reused_tokens == shared
    assert talk.receipt.prompt_tokens == len(ids)


def test_what_two_turns_share_runs_once(talker: LLM) -> None:
    keeps_prefix(talker)


def test_the_same_question_twice_runs_its_last_token_again(talker: LLM) -> None:
    talk = talker.conversation()
    dropped = talk.ask("hi", max_tokens=5, sampling=GREEDY)
    next(dropped)
    dropped.close()
    expected = fresh_answer(talker, [], "hi", 5)
    assert ask(talk, "hi") == expected
    assert talk.receipt.reused_tokens == talk.receipt.prompt_tokens - 1


def test_edited_messages_are_what_counts(talker: LLM) -> None:
    talk = talker.conversation("Be brief.")
    ask(talk, "hi")
    talk.messages[0] = {"role": "system", "content": "Be long."}
    expected = fresh_answer(talker, talk.messages, "so?", 5)
    assert ask(talk, "so?") == expected
    check_cache(talk)


@pytest.mark.parametrize("pieces", [0, 1, 2])
def test_a_dropped_answer_leaves_no_trace(talker: LLM, pieces: int) -> None:
    talk = talker.conversation()
    ask(talk, "hi")
    before = list(talk.messages)
    running = talk.ask("what?", max_tokens=8, sampling=GREEDY)
    for _ in range(pieces):
        next(running)
    running.close()
    assert talk.messages == before
    check_cache(talk)
    expected = fresh_answer(talker, before, "again", 5)
    assert ask(talk, "again") == expected


@pytest.mark.parametrize("error", [RuntimeError("kernel"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", [0, 1, 3])
def test_an_answer_that_fails_leaves_no_trace(
    talker: LLM, monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException
) -> None:
    talk = talker.conversation()
    ask(talk, "hi")
    before = list(talk.messages)
    monkeypatch.setattr(memory, "CHUNK", 4)
    with monkeypatch.context() as patch:
        patch.setattr(token_loop, "run_step", failing_at(step, error))
        with pytest.raises(type(error)):
            ask(talk, "what?")
    assert talk.messages == before
    check_cache(talk)
    expected = fresh_answer(talker, before, "again", 5)
    assert ask(talk, "again") == expected
    check_cache(talk)


def failing_at(step: int, error: BaseException) -> Any:
    calls = 0

    def forward(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == step + 1:
            raise error
        return run_step(*arguments, **options)

    return forward


def second_ends_first(llm: LLM) -> None:
    talk = llm.conversation()
    first = talk.ask("hi", max_tokens=9, sampling=GREEDY)
    next(first)
    expected = fresh_answer(llm, [], "no: this", 5)
    second = talk.ask("no: this", max_tokens=5, sampling=GREEDY)
    start = next(second)
    assert list(first) == []
    assert start + "".join(second) == expected
    assert [message["content"] for message in talk.messages] == ["no: this", expected]
    check_cache(talk)


def test_a_second_question_ends_the_first_answer(talker: LLM) -> None:
    second_ends_first(talker)


def refusals_change_nothing(llm: LLM) -> None:
    talk = llm.conversation()
    expected = fresh_answer(llm, [], "hi", 6)
    running = talk.ask("hi", max_tokens=6, sampling=GREEDY)
    start = next(running)
    length = talk._cache.length if talk._cache else None
    with pytest.raises(PromptTooLong, match="the context holds 400"):
        talk.ask("x" * 500)
    with pytest.raises(InvalidSetting, match="max_tokens"):
        talk.ask("what?", max_tokens=0)
    assert talk._cache is not None
    assert talk._cache.length == length
    assert start + "".join(running) == expected  # still running
    assert len(talk.messages) == 2
    check_cache(talk)


def test_a_refused_question_changes_nothing(talker: LLM) -> None:
    refusals_change_nothing(talker)


def test_a_conversation_can_fill_its_context(fixtures_path: Path) -> None:
    small = LLM(fixtures_path / "tiny-llama-tied.gguf")
    talk = small.conversation()
    answer = "".join(talk.ask("hi", sampling=GREEDY))
    assert talk.receipt.finish_reason == "context"
    assert talk._cache is not None
    assert talk._cache.length == 64 == len(talk._held)
    assert answer == small.chat("hi", sampling=GREEDY).text()
    with pytest.raises(PromptTooLong):
        talk.ask("more")
    assert len(talk.messages) == 2


def test_conversations_share_nothing(talker: LLM) -> None:
    one, other = talker.conversation(), talker.conversation()
    running = [talk.ask(text, max_tokens=6, sampling=GREEDY) for talk, text in ((one, "hi"), (other, "he"))]
    woven: list[list[str]] = [[], []]
    live = [0, 1]
    while live:
        for i in list(live):
            try:
                woven[i].append(next(running[i]))
            except StopIteration:
                live.remove(i)
    assert ["".join(pieces) for pieces in woven] == [
        fresh_answer(talker, [], "hi", 6),
        fresh_answer(talker, [], "he", 6),
    ]


# From two threads


def while_it_computes(llm: LLM, attempt: Callable[[Conversation, Answer], object]) -> str:
    """What comes of an attempt made while another thread computes the second piece of an answer."""
    talk = llm.conversation()
    expected = fresh_answer(llm, [], "hi", 6)
    running = talk.ask("hi", max_tokens=6, sampling=GREEDY)
    pieces = [next(running)]
    inside, go_on = threading.Event(), threading.Event()

    def held(*arguments: Any, **options: Any) -> Any:
        inside.set()
        assert go_on.wait(30)
        return run_step(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_loop, "run_step", held)
        computing = threading.Thread(target=lambda: pieces.append(next(running)))
        computing.start()
        try:
            assert inside.wait(30)
            with pytest.raises(ConversationBusy, match="another thread") as raised:
                attempt(talk, running)
        finally:
            go_on.set()
            computing.join()
    assert "".join(pieces) + "".join(running) == expected  # it changed nothing
    assert [message["content"] for message in talk.messages] == ["hi", expected]
    check_cache(talk)
    return raised.value.remedy


ATTEMPTS: list[Callable[[Conversation, Answer], object]] = [
    lambda talk, _: talk.ask("no: this"),
    lambda _, running: next(running),
    lambda _, running: running.close(),
]


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=["ask", "next", "close"])
def test_a_second_thread_is_refused(talker: LLM, attempt: Any) -> None:
    assert "conversation for each thread" in while_it_computes(talker, attempt)


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=["ask", "next", "close"])
def test_sabotage_the_turn(talker: LLM, attempt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Python's own refusal to enter a generator that runs
    goes_red(monkeypatch, Turn, "mine", lambda _: nullcontext(),
             lambda: while_it_computes(talker, attempt), expect=ValueError)  # fmt: skip


def test_a_thread_may_ask_once_the_piece_is_there(talker: LLM) -> None:
    talk = talker.conversation()
    next(talk.ask("hi", max_tokens=6, sampling=GREEDY))
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(ask(talk, "no: this")))
    asking.start()
    asking.join()
    assert answers == [fresh_answer(talker, [], "no: this", 5)]


@pytest.mark.parametrize(("question", "options", "named"), [
    (5, {}, "text is a int, expected text"), (b"hi", {}, "text is a bytes"),
    ("hi", {"sampling": {"temperature": 0}}, "sampling is a dict, expected a Sampling"),
])  # fmt: skip
def test_what_is_no_question(talker: LLM, question: Any, options: Any, named: str) -> None:
    talk = talker.conversation()
    running = talk.ask("hi", max_tokens=3, sampling=GREEDY)
    with pytest.raises(InvalidSetting, match=named):
        talk.ask(question, **options)
    assert "".join(running)  # still running
    with pytest.raises(InvalidSetting, match="system is a int"):
        talker.conversation(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("a", "b", "length"), [
    ([], [], 0), ([], [1], 0), ([1], [1], 1), ([1, 2], [1, 3], 1), ([1, 2], [1, 2, 3], 2), ([2], [1], 0),
])  # fmt: skip
def test_common_prefix(a: list[int], b: list[int], length: int) -> None:
    assert common_prefix(a, b) == common_prefix(b, a) == length


# The guards, one by one


def test_sabotage_the_prefix_check(talker: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def longest(a: list[int], b: list[int]) -> int:
        return min(len(a), len(b))

    goes_red(monkeypatch, conversation_module, "common_prefix", longest, lambda: two_turns(talker))


def test_sabotage_what_is_remembered(talker: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(monkeypatch, Conversation, "_remember", nothing, lambda: two_turns(talker))


def test_sabotage_what_is_kept(talker: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(monkeypatch, conversation_module, "common_prefix", lambda a, b: 0, lambda: keeps_prefix(talker))


def test_sabotage_ending_the_first(talker: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(monkeypatch, Conversation, "_end_running", nothing,
             lambda: second_ends_first(talker), expect=CacheChanged)  # fmt: skip


def test_sabotage_check_prompt(talker: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(monkeypatch, conversation_module, "check_prompt", nothing,
             lambda: refusals_change_nothing(talker))  # fmt: skip


# Any order of events

compared: Counter[str] = Counter()
words = st.sampled_from(["hi", "he", "hello", "é", "no <|im_end|>", ""])


class Turns(RuleBasedStateMachine):
    """Every completed answer is compared with a fresh conversation's; counted for what came before."""

    llm: LLM

    def __init__(self) -> None:
        super().__init__()
        self.talk = self.llm.conversation()
        self.messages: list[Any] = []
        self.running: Any = None
        self.since = {"start"}

    @precondition(lambda self: len(self.messages) < 6)
    @rule(text=words, max_tokens=st.integers(1, 6))
    def complete(self, text: str, max_tokens: int) -> None:
        expected = fresh_answer(self.llm, self.messages, text, max_tokens)
        assert ask(self.talk, text, max_tokens) == expected
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": expected}]
        compared.update(self.since)
        self.running, self.since = None, {"complete"}

    @rule(text=words, pieces=st.integers(0, 3))
    def begin(self, text: str, pieces: int) -> None:
        self.running = self.talk.ask(text, max_tokens=6, sampling=GREEDY)
        for _, _ in zip(range(pieces), self.running, strict=False):
            pass
        if self.talk.messages != self.messages:  # it was short and is complete
            self.messages = list(self.talk.messages)
            self.running = None
        self.since.add("begin")

    @rule(text=words, pieces=st.integers(0, 3))
    def drop(self, text: str, pieces: int) -> None:
        self.begin(text, pieces)
        if self.running is not None:
            self.running.close()
        self.running = None
        self.since.add("drop")

    @rule(text=words, step=st.integers(0, 2))
    def fail(self, text: str, step: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(token_loop, "run_step", failing_at(step, RuntimeError("kernel")))
            try:
                ask(self.talk, text, 6)
            except RuntimeError:
                pass
            else:  # it had ended before the step that fails
                self.messages = list(self.talk.messages)
        self.running = None
        self.since.add("fail")

    @rule(text=words)
    def refuse(self, text: str) -> None:
        with pytest.raises(InvalidSetting):
            self.talk.ask(text, max_tokens=-1)
        with pytest.raises(PromptTooLong):
            self.talk.ask("x" * 500)
        self.since.add("refuse")

    @precondition(lambda self: len(self.messages) >= 2)
    @rule()
    def take_back(self) -> None:
        del self.talk.messages[-2:]
        del self.messages[-2:]
        self.since.add("take back")

    @invariant()
    def messages_agree(self) -> None:
        assert self.talk.messages == self.messages

    @invariant()
    def cache_agrees(self) -> None:
        if self.running is None:
            check_cache(self.talk)


def test_any_order_of_events(talker: LLM) -> None:
    Turns.llm = talker
    compared.clear()
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Turns,
        settings=settings(
            max_examples=45, stateful_step_count=14, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
    for event in ("start", "complete", "begin", "drop", "fail", "refuse", "take back"):
        assert compared[event] >= 5, compared
