"""The one token loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ostinato.decode.data import check_tokens
from ostinato.decode.forward import check_cache
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.want import Argmax, Last, Want
from ostinato.engine.memory import prefill_rows
from ostinato.engine.pool import PlanMode, SlotPool, run_step
from ostinato.engine.receipt import Receipt
from ostinato.errors.generate import CacheChanged, EmptyPrompt, PromptTooLong
from ostinato.generate.sampler import Sampler
from ostinato.generate.settings import check_count
from ostinato.models.contract import Model
from ostinato.runtime.context import InferenceContext


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
    traits = context.devices.device(context.location).traits

    def rows_at(length: int) -> int:
        return prefill_rows(model, traits, length)

    def leased() -> Generator[int]:
        with (pool or SlotPool()).lease() as slot:
            before = replace(slot.statistics)

            def step(tokens: Sequence[int], want: Want) -> Any:
                hold.check()
                result = run_step(model, tokens, cache, context, slot, mode, want=want)
                hold.length += len(tokens)
                receipt.count_steps(before, slot.statistics)
                return result

            yield from _tokens(step, rows_at, prompt, hold, sampler, max_tokens, end_ids, receipt)

    return leased()


def _tokens(
    step: Callable[[Sequence[int], Want], Any],
    rows_at: Callable[[int], int],
    prompt: Sequence[int],
    hold: CacheHold,
    sampler: Sampler,
    max_tokens: int | None,
    end_ids: Container[int],
    receipt: Receipt,
) -> Generator[int]:
    began = time.perf_counter()
    at = 0
    while len(prompt) - at > (rows := rows_at(hold.length)):
        step(prompt[at : at + rows], Argmax())
        at += rows
    # The sampler sees the first logits even when greedy, which needs none: a damaged model shows in them.
    token = sampler.draw(step(prompt[at:], Last()))
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
        token = step([token], Argmax()) if sampler.greedy else sampler.draw(step([token], Last()))
        receipt.decode_seconds += time.perf_counter() - before
        receipt.decode_steps += 1
