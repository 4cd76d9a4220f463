"""The one token loop."""

from __future__ import annotations

import time
from collections.abc import Container, Generator, Sequence
from dataclasses import dataclass, replace

from ostinato.decode.data import check_tokens
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.request import check_cache
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import LAST, Argmax
from ostinato.engine.memory import prefill_rows
from ostinato.engine.pool import PlanMode, SlotPool, run_step
from ostinato.engine.receipt import Receipt
from ostinato.errors.generate import CacheChanged, EmptyPrompt, PromptTooLong
from ostinato.generate.sampler import Sampler
from ostinato.generate.settings import check_count
from ostinato.models.contract import Model
from ostinato.runtime.context import InferenceContext

ARGMAX = Argmax()


@dataclass
class CacheHold:
    """A generation's cache as its last step left it. Two generations over one cache, or a `clear` in between,
    would mix contexts without a sign: each step asks first."""

    cache: KvCache
    alloc_id: int
    length: int

    @classmethod
    def of(cls, cache: KvCache) -> CacheHold:
        return cls(cache, cache.alloc_id, cache.length)

    def check(self) -> None:
        """Raises CacheChanged unless the cache is as it was left."""
        expected, got = (self.alloc_id, self.length), (self.cache.alloc_id, self.cache.length)
        if got != expected:
            raise CacheChanged(expected, got)

    @property
    def full(self) -> bool:
        return self.length == self.cache.capacity


def check_prompt(
    model: Model, prompt: Sequence[int], *, held: int, capacity: int, max_tokens: int | None
) -> None:
    """Raises EmptyPrompt, TokenOutOfRange, PromptTooLong or InvalidSetting before anything runs.

    `held` positions of `capacity` are taken before the prompt.
    """
    if not prompt:
        raise EmptyPrompt()
    check_tokens(model, prompt)
    if held + len(prompt) > capacity:
        raise PromptTooLong(held + len(prompt), capacity)
    check_count("max_tokens", max_tokens)


def generate_tokens(
    model: Model,
    prompt: Sequence[int],
    cache: KvCache,
    context: InferenceContext,
    sampler: Sampler,
    *,
    max_tokens: int | None,
    end_ids: Container[int],
    receipt: Receipt,
    pool: SlotPool | None = None,
    mode: PlanMode = PlanMode.CAPTURED,
) -> Generator[int]:
    """Run the prompt in chunks after what the cache holds, then yield tokens until the model ends,
    `max_tokens` are out or the cache is full. The last token yielded is not in the cache yet.

    A slot of `pool` is leased from the first token to the end. An end token is not yielded. The iterator may
    be dropped at any point: the cache stays whole. What `check_prompt` raises, and CacheMismatch, comes at
    once; the first step runs with the first `next`. CacheChanged comes before a step when the cache is no
    longer as this generation left it (or, before the first, found it).
    """
    check_cache(model, cache)
    check_prompt(model, prompt, held=cache.length, capacity=cache.capacity, max_tokens=max_tokens)
    receipt.reused_tokens = cache.length
    receipt.prompt_tokens = cache.length + len(prompt)
    receipt.seed = None if sampler.greedy else sampler.seed
    hold = CacheHold.of(cache)

    def leased() -> Generator[int]:
        with (pool or SlotPool()).lease() as slot:
            steps = Steps(model, hold, context, slot, mode, receipt)
            yield from _tokens(steps, prompt, sampler, max_tokens, end_ids)

    return leased()


class Steps:
    """One generation's steps over its leased slot."""

    def __init__(
        self,
        model: Model,
        hold: CacheHold,
        context: InferenceContext,
        slot: DecodeSlot,
        mode: PlanMode,
        receipt: Receipt,
    ) -> None:
        self.model, self.hold, self.receipt = model, hold, receipt
        self._place = (context, slot, mode)
        self._slot = slot
        self._before = replace(slot.statistics)
        self._traits = context.devices.device(context.location).traits

    def prefill_rows(self) -> int:
        """The most rows of a prompt that the next step may have."""
        return prefill_rows(self.model, self._traits, self.hold.length)

    def likeliest(self, tokens: Sequence[int]) -> int:
        """Run `tokens`; the likeliest after them. No logits leave the device. Raises CacheChanged."""
        self.hold.check()
        token = run_step(self.model, tokens, self.hold.cache, *self._place, want=ARGMAX)
        self._ran(len(tokens))
        return token

    def drawn(self, tokens: Sequence[int], sampler: Sampler) -> int:
        """Run `tokens`; what the sampler draws from the logits, which are not its own: it is done with them
        before the next step. Raises CacheChanged, InvalidLogits."""
        self.hold.check()
        logits = run_step(self.model, tokens, self.hold.cache, *self._place, want=LAST, borrow=True)
        self._ran(len(tokens))
        return sampler.draw(logits.array)

    def _ran(self, count: int) -> None:
        self.hold.length += count
        self.receipt.count_steps(self._before, self._slot.statistics)


def _tokens(
    steps: Steps, prompt: Sequence[int], sampler: Sampler, max_tokens: int | None, end_ids: Container[int]
) -> Generator[int]:
    receipt, hold = steps.receipt, steps.hold
    began = time.perf_counter()
    at = 0
    while len(prompt) - at > (rows := steps.prefill_rows()):
        steps.likeliest(prompt[at : at + rows])
        at += rows
    # The sampler sees the first logits even when greedy, which needs none: a damaged model shows in them.
    token = steps.drawn(prompt[at:], sampler)
    receipt.seconds_to_first = time.perf_counter() - began
    while True:
        if token in end_ids:
            receipt.finish_reason = "stop"
            return
        receipt.tokens += 1
        yield token
        if receipt.tokens == max_tokens:
            receipt.finish_reason = "length"
            return
        if hold.full:
            receipt.finish_reason = "context"
            return
        before = time.perf_counter()
        token = steps.likeliest([token]) if sampler.greedy else steps.drawn([token], sampler)
        receipt.decode_seconds += time.perf_counter() - before
        receipt.decode_steps += 1
