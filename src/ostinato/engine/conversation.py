"""A conversation: messages, and a KV cache that keeps what the next turn shares with the last."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from ostinato.decode.kv_cache import KvCache
from ostinato.engine.receipt import Receipt
from ostinato.errors.generate import PromptTooLong
from ostinato.generate.settings import Sampling

if TYPE_CHECKING:
    from ostinato.engine.llm import LLM, Generation, Message


class Conversation:
    """One user's turns. A turn that fails or is dropped leaves the messages as they were before it.

    The cache holds exactly the tokens `_held`; a new turn keeps the longest common prefix and runs the rest.
    """

    def __init__(self, llm: LLM, system: str | None = None) -> None:
        self._llm = llm
        self.messages: list[Message] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self.receipt = Receipt()
        self._cache: KvCache | None = None
        self._held: list[int] = []
        self._running: Generator[str] | None = None

    def ask(
        self, text: str, *, max_tokens: int | None = None, sampling: Sampling | None = None
    ) -> Generator[str]:
        """The answer to `text`, piece by piece; question and answer join the messages when it is complete.

        An answer still running from an earlier turn is ended and dropped. Raises NoChatTemplate,
        ChatTemplateError, PromptTooLong, InvalidSetting before anything changes.
        """
        question = {"role": "user", "content": text}
        ids = self._llm.encode_chat([*self.messages, question])
        if len(ids) > self._llm.context:
            raise PromptTooLong(len(ids), self._llm.context)
        if self._running is not None:
            self._running.close()  # two turns stepping one cache would mix their positions
        if self._cache is None:
            self._cache = self._llm.new_cache()
        shared = _common_prefix(self._held, ids[:-1])  # at least one token must run to yield logits
        self._cache.truncate_to(shared)
        self._held = ids[:shared]
        generation = self._llm.stream(
            ids[shared:], max_tokens=max_tokens, sampling=sampling, cache=self._cache
        )
        self.receipt = generation.receipt
        self.receipt.reused_tokens = shared
        self.receipt.prompt_tokens = shared
        self._running = self._answer(question, ids, generation, self._cache)
        return self._running

    def _answer(
        self, question: Message, ids: list[int], generation: Generation, cache: KvCache
    ) -> Generator[str]:
        answer = []
        try:
            for piece in generation:
                answer.append(piece)
                yield piece
        finally:
            self._held = (ids + generation.ids)[: cache.length]
        self.messages += [question, {"role": "assistant", "content": "".join(answer)}]


def _common_prefix(a: list[int], b: list[int]) -> int:
    for at, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return at
    return min(len(a), len(b))
