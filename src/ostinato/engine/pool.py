"""Decode slots, leased to requests: a plan made once serves them all."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Literal, overload

from ostinato.decode.borrowed import BorrowedLogits
from ostinato.decode.forward import (
    borrow_logits,
    forward_with_kv_context,
    forward_with_kv_context_captured,
    forward_with_kv_context_persistent,
)
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.shelf import PlanShelf
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import Argmax, F32Array, Last, LogitsWant, Result, Want
from ostinato.models.contract import Model
from ostinato.runtime.context import InferenceContext


class PlanMode(Enum):
    """How steps run: planned anew, through held plans, or replayed where a capture is granted."""

    REPLAN = "replan"
    HELD = "held"
    CAPTURED = "captured"


class SlotPool:
    """The slots of one model on one device. A request leases one, its cache is re-bound into it; slots that
    run at once share their plans. Thread-safe."""

    def __init__(self) -> None:
        self.shelf = PlanShelf()
        self._idle: list[DecodeSlot] = []
        self._lock = threading.Lock()

    @contextmanager
    def lease(self) -> Iterator[DecodeSlot]:
        """A slot of one's own; the one used last, whose plans are warm, where any is idle."""
        with self._lock:
            slot = self._idle.pop() if self._idle else DecodeSlot(self.shelf)
        slot.acquire()
        try:
            yield slot
        finally:
            slot.release()
            with self._lock:
                self._idle.append(slot)


@overload
def run_step(
    model: Model, tokens: Sequence[int], cache: KvCache, context: InferenceContext, slot: DecodeSlot,
    mode: PlanMode, *, want: LogitsWant, borrow: Literal[False] = ...,
) -> F32Array: ...  # fmt: skip
@overload
def run_step(
    model: Model, tokens: Sequence[int], cache: KvCache, context: InferenceContext, slot: DecodeSlot,
    mode: PlanMode, *, want: Argmax, borrow: Literal[False] = ...,
) -> int: ...  # fmt: skip
@overload
def run_step(
    model: Model, tokens: Sequence[int], cache: KvCache, context: InferenceContext, slot: DecodeSlot,
    mode: PlanMode, *, want: Last, borrow: Literal[True],
) -> BorrowedLogits: ...  # fmt: skip
def run_step(
    model: Model,
    tokens: Sequence[int],
    cache: KvCache,
    context: InferenceContext,
    slot: DecodeSlot,
    mode: PlanMode,
    *,
    want: Want,
    borrow: bool = False,
) -> Result | BorrowedLogits:
    """Run `tokens` after what the cache holds, in `mode` or, where that can't be, in the next plainer one.

    See `forward_with_kv_context`. `borrow`, for Last alone: logits that are good until the slot's next step,
    read where the device left them if they can be.
    """
    if mode is PlanMode.REPLAN:
        slot.runs += 1
        result = forward_with_kv_context(model, tokens, cache, context, want=want)
        slot.statistics.replanned += 1
        return BorrowedLogits(result, slot) if borrow and not isinstance(result, int) else result
    captured = mode is PlanMode.CAPTURED
    if borrow:
        return borrow_logits(model, tokens, cache, context, slot, captured=captured)
    forward = forward_with_kv_context_captured if captured else forward_with_kv_context_persistent
    return forward(model, tokens, cache, context, slot, want=want)
