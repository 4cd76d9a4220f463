"""A conversation: messages, and a KV cache that keeps what the next turn shares with the last."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from ostinato.decode.kv_cache import KvCache
from ostinato.engine.receipt import Receipt
from ostinato.engine.token_loop import check_prompt
from ostinato.engine.turn import Turn
from ostinato.errors.generate import ConversationBusy
from ostinato.generate.settings import Sampling, check_kind, check_sampling

if TYPE_CHECKING:
    from ostinato.engine.llm import LLM, Generation, Message


class Answer(Iterator[str]):
    """An answer, piece by piece. Whatever a thread does with the conversation while another computes a piece
    raises ConversationBusy and changes nothing."""

    def __init__(self, pieces: Generator[str], turn: Turn) -> None:
        self._pieces = pieces
        self._turn = turn

    def __next__(self) -> str:
        with self._turn.mine():
            return next(self._pieces)

    def close(self) -> None:
        """End it here and drop the turn, unless it was complete."""
        with self._turn.mine():
            self._pieces.close()


class Conversation:
    """One user's turns. A turn that fails or is dropped leaves the messages as they were before it.

    The cache holds exactly the tokens `_held`; a new turn keeps the longest common prefix and runs the rest.
    Threads may share a conversation, one at a time: a second one is refused, not queued.
    """

    def __init__(self, llm: LLM, system: str | None = None) -> None:
        if system is not None:
            check_kind("system", system, str, "text")
        self._llm = llm
        self.messages: list[Message] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self.receipt = Receipt()
        self._cache: KvCache | None = None
        self._held: list[int] = []
        self._running: Generator[str] | None = None
        self._turn = Turn(ConversationBusy)

    def ask(self, text: str, *, max_tokens: int | None = None, sampling: Sampling | None = None) -> Answer:
        """The answer to `text`, piece by piece; question and answer join the messages when it is complete.

        An answer still running from an earlier turn is ended and dropped. Raises ConversationBusy,
        NoChatTemplate, ChatTemplateError, PromptTooLong, InvalidSetting before anything changes.
        """
        with self._turn.mine():
            check_kind("text", text, str, "text")
            check_sampling(sampling)
            llm, question = self._llm, {"role": "user", "content": text}
            ids = llm.encode_chat([*self.messages, question])
            check_prompt(llm.model, ids, held=0, capacity=llm.context, max_tokens=max_tokens)
            self._end_running()
            cache = self._keep_prefix(ids)
            generation = llm.stream(
                ids[cache.length :], max_tokens=max_tokens, sampling=sampling, cache=cache
            )
            self.receipt = generation.receipt
            self._running = self._answer(question, ids, generation, cache)
            return Answer(self._running, self._turn)

    def _end_running(self) -> None:
        """Two turns that step one cache would mix their positions: the earlier one ends here."""
        if self._running is not None:
            self._running.close()

    def _keep_prefix(self, ids: list[int]) -> KvCache:
        """The cache, cut to what it shares with `ids`; at least the last of these is left to run."""
        if self._cache is None:
            self._cache = self._llm.new_cache()
        shared = common_prefix(self._held, ids[:-1])
        self._cache.truncate_to(shared)
        self._held = ids[:shared]
        return self._cache

    def _answer(
        self, question: Message, ids: list[int], generation: Generation, cache: KvCache
    ) -> Generator[str]:
        answer = []
        try:
            for piece in generation:
                answer.append(piece)
                yield piece
        finally:
            generation.close()
            self._remember(ids + generation.ids, cache)
        self.messages += [question, {"role": "assistant", "content": "".join(answer)}]

    def _remember(self, tokens: list[int], cache: KvCache) -> None:
        """The last token drawn never ran, and a turn that broke off ran fewer still."""
        self._held = tokens[: cache.length]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens `a` and `b` begin with in common."""
    for at, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return at
    return min(len(a), len(b))
