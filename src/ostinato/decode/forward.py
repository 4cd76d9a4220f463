"""Entry points: one step of a model over a KV cache, planned anew, held, or replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from ostinato.decode.borrowed import BorrowedLogits
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.request import StepRequest
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import LAST, Argmax, F32Array, LogitsWant, Result, Want
from ostinato.device.traits import WritePath
from ostinato.models.contract import Model
from ostinato.runtime.context import InferenceContext


@overload
def forward_with_kv_context(
    model: Model, tokens: Sequence[int], cache: KvCache, context: InferenceContext,
    *, want: LogitsWant = ..., write_path: WritePath | None = None,
) -> F32Array: ...  # fmt: skip
@overload
def forward_with_kv_context(
    model: Model, tokens: Sequence[int], cache: KvCache, context: InferenceContext,
    *, want: Argmax, write_path: WritePath | None = None,
) -> int: ...  # fmt: skip
def forward_with_kv_context(
    model: Model,
    tokens: Sequence[int],
    cache: KvCache,
    context: InferenceContext,
    *,
    want: Want = LAST,
    write_path: WritePath | None = None,
) -> Result:
    """Run `tokens` after what `cache` holds, planning the step anew, and return what `want` asks for.

    Last → float32 `[vocab]` · All → `[seq, vocab]` · Rows → `[n, vocab]` · Hidden → `[seq, dim]` ·
    Argmax → int. The result is the caller's. `write_path` forces one on a device of another.

    Raises InvalidWant, EmptyStep, TokenOutOfRange, CapacityExceeded, CacheMismatch, RowOutOfRange before
    anything runs. Whatever is raised, `cache` attends the same positions as before; its length grows only on
    success.
    """
    request = StepRequest.checked(model, tokens, cache, context, want, write_path)
    result = request.replan()
    cache.advance(len(request.ids))
    return result


@overload
def forward_with_kv_context_persistent(
    model: Model, tokens: Sequence[int], cache: KvCache, context: InferenceContext, slot: DecodeSlot,
    *, want: LogitsWant = ..., write_path: WritePath | None = None,
) -> F32Array: ...  # fmt: skip
@overload
def forward_with_kv_context_persistent(
    model: Model, tokens: Sequence[int], cache: KvCache, context: InferenceContext, slot: DecodeSlot,
    *, want: Argmax, write_path: WritePath | None = None,
) -> int: ...  # fmt: skip
def forward_with_kv_context_persistent(
    model: Model,
    tokens: Sequence[int],
    cache: KvCache,
    context: InferenceContext,
    slot: DecodeSlot,
    *,
    want: Want = LAST,
    write_path: WritePath | None = None,
) -> Result:
    """The same through the slot's held plans, which are built when first needed, re-bound to another cache of
    the same geometry, and dropped when they can't serve. A topology that changed costs one replanned step.
    """
    request = StepRequest.checked(model, tokens, cache, context, want, write_path, slot)
    return request.healing(slot, request.held, request.replan)


@overload
def forward_with_kv_context_captured(
    model: Model, tokens: Sequence[int], cache: KvCache, context: InferenceContext, slot: DecodeSlot,
    *, want: LogitsWant = ..., write_path: WritePath | None = None,
) -> F32Array: ...  # fmt: skip
@overload
def forward_with_kv_context_captured(
    model: Model, tokens: Sequence[int], cache: KvCache, context: InferenceContext, slot: DecodeSlot,
    *, want: Argmax, write_path: WritePath | None = None,
) -> int: ...  # fmt: skip
def forward_with_kv_context_captured(
    model: Model,
    tokens: Sequence[int],
    cache: KvCache,
    context: InferenceContext,
    slot: DecodeSlot,
    *,
    want: Want = LAST,
    write_path: WritePath | None = None,
) -> Result:
    """The same through a capture of the held decode plan, for one token; a longer step, and a plan that can't
    be captured, run held, and the slot's statistics say why."""
    replay = slot.replay
    if replay is not None and replay.covers(model, tokens, cache, context, write_path, slot):
        if isinstance(want, Argmax):
            return replay.likeliest(tokens[0], slot)
        if want is LAST:
            return replay.logits(tokens[0], slot)
    request = StepRequest.checked(model, tokens, cache, context, want, write_path, slot)
    return request.healing(slot, request.captured, request.replan)


def borrow_logits(
    model: Model,
    tokens: Sequence[int],
    cache: KvCache,
    context: InferenceContext,
    slot: DecodeSlot,
    *,
    captured: bool,
) -> BorrowedLogits:
    """The logits of the last row, captured or held, for the loop that owns `slot` and reads them before its
    next step: the device's own buffer where the host can read it, and no copy."""
    replay = slot.replay
    if captured and replay is not None and replay.covers(model, tokens, cache, context, None, slot):
        return replay.borrowed(tokens[0], slot)
    request = StepRequest.checked(model, tokens, cache, context, LAST, None, slot)
    return request.healing(
        slot, lambda slot: request.borrowed(slot, captured), lambda: request.replanned_loan(slot)
    )
