"""A second thread at a generation is refused by name, and changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from ostinato.engine import token_loop
from ostinato.engine.llm import LLM, Generation
from ostinato.engine.pool import run_step
from ostinato.engine.turn import Turn
from ostinato.errors import GenerationBusy
from ostinato.generate.settings import Sampling
from sabotage import goes_red

GREEDY = Sampling(temperature=0.0)

ATTEMPTS: dict[str, Callable[[Generation], object]] = {
    "next": next, "close": lambda running: running.close(), "text": lambda running: running.text(),
}  # fmt: skip


def while_it_computes(llm: LLM, attempt: Callable[[Generation], object]) -> None:
    expected = llm.generate("hello", max_tokens=8, sampling=GREEDY)
    running = llm.stream("hello", max_tokens=8, sampling=GREEDY)
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
            with pytest.raises(GenerationBusy, match="another thread") as raised:
                attempt(running)
        finally:
            go_on.set()
            computing.join()
    assert "a generation for each" in raised.value.remedy
    assert "".join(pieces) + running.text() == expected


@pytest.mark.parametrize("name", ATTEMPTS)
def test_a_second_thread_is_refused(endless: LLM, name: str) -> None:
    while_it_computes(endless, ATTEMPTS[name])


@pytest.mark.parametrize("name", ATTEMPTS)
def test_sabotage_the_turn(endless: LLM, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Python's own refusal to enter a generator that runs
    goes_red(monkeypatch, Turn, "mine", lambda _: nullcontext(),
             lambda: while_it_computes(endless, ATTEMPTS[name]), expect=ValueError)  # fmt: skip
