"""The one token loop."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Sequence

from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.want import Argmax, Last
from ostinato.engine.receipt import Receipt
from ostinato.errors.generate import EmptyPrompt, InvalidSetting, PromptTooLong
from ostinato.generate.sampler import Sampler
from ostinato.models.contract import Model
from ostinato.runtime.context import InferenceContext

CHUNK = 512
"""Rows of one prefill step: bounds the memory of a step whatever the prompt's length."""


def check_prompt(prompt: Sequence[int], cache: KvCache, max_tokens: int | None) -> None:
    """Raises EmptyPrompt, PromptTooLong or InvalidSetting before anything runs."""
    if not prompt:
        raise EmptyPrompt()
    if cache.length + len(prompt) > cache.capacity:
        raise PromptTooLong(cache.length + len(prompt), cache.capacity)
    if max_tokens is not None and max_tokens < 1:
        raise InvalidSetting("max_tokens", "an integer of at least 1", repr(max_tokens))


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
) -> Iterator[int]:
    """Run the prompt in chunks after what the cache holds, then yield tokens until the model ends, `max_tokens`
    are out or the cache is full. The last token yielded is not in the cache yet.

    An end token is not yielded. The iterator may be dropped at any point: the cache stays whole.
    """
    check_prompt(prompt, cache, max_tokens)
    receipt.prompt_tokens += len(prompt)
    receipt.seed = None if sampler.greedy else sampler.seed
    began = time.perf_counter()
    *chunks, last = [prompt[at : at + CHUNK] for at in range(0, len(prompt), CHUNK)]
    for chunk in chunks:
        forward_with_kv_context(model, chunk, cache, context, want=Argmax())
    token = _step(model, last, cache, context, sampler)
    first = time.perf_counter()
    receipt.seconds_to_first = first - began
    while True:
        if token in end_ids:
            receipt.finish_reason = "stop"
            return
        receipt.tokens += 1
        yield token
        if receipt.tokens == max_tokens:
            receipt.finish_reason = "length"
            return
        if cache.length == cache.capacity:
            receipt.finish_reason = "context"
            return
        before = time.perf_counter()
        token = _step(model, [token], cache, context, sampler)
        receipt.decode_seconds += time.perf_counter() - before
        receipt.decode_steps += 1


def _step(
    model: Model, tokens: Sequence[int], cache: KvCache, context: InferenceContext, sampler: Sampler
) -> int:
    if sampler.greedy:
        return forward_with_kv_context(model, tokens, cache, context, want=Argmax())
    return sampler.draw(forward_with_kv_context(model, tokens, cache, context, want=Last()))
