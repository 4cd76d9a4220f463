"""The shortest way of a captured token: everything at hand that the last one's request had to find out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ostinato.decode.borrowed import BorrowedLogits
from ostinato.decode.capture import CaptureBuffers, CapturedDecodeSession
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.proven import ProvenRequest
from ostinato.decode.want import F32Array
from ostinato.device.traits import WritePath
from ostinato.models.contract import Model
from ostinato.runtime.context import InferenceContext

if TYPE_CHECKING:
    from ostinato.decode.slot import DecodeSlot


class TokenReplay:
    """A proven request, its cache and its capture, as it left them in a slot. It decides nothing: where
    `covers` finds all as it was, `StepRequest` would come to the same replay, by ten times the Python. That
    matters because a token has just swept the processor's caches: what Python touches then is slow.
    """

    def __init__(
        self,
        proven: ProvenRequest,
        cache: KvCache,
        context: InferenceContext,
        capture: CapturedDecodeSession,
        buffers: CaptureBuffers,
    ) -> None:
        self._proven, self._cache, self._context = proven, cache, context
        self._capture, self._buffers = capture, buffers
        self._vocab = proven.config.vocab_size
        self._counters = context.counters

    @classmethod
    def of(
        cls,
        proven: ProvenRequest | None,
        cache: KvCache,
        context: InferenceContext,
        capture: CapturedDecodeSession,
    ) -> TokenReplay | None:
        """What a proven request that `capture` served leaves behind; None where there is no shorter way."""
        buffers = capture.buffers
        if proven is None or buffers is None:
            return None
        return cls(proven, cache, context, capture, buffers)

    def covers(
        self,
        model: Model,
        tokens: Sequence[int],
        cache: KvCache,
        context: InferenceContext,
        write_path: WritePath | None,
        slot: DecodeSlot,
    ) -> bool:
        """Whether these are what this one is about, unchanged, and the token is one that can run."""
        return (
            len(tokens) == 1
            and cache is self._cache
            and context is self._context
            and self._proven.covers(model, cache, context, write_path)
            and slot.capture is self._capture
            and not self._capture.is_stale
            and cache.length < cache.capacity
            and type(tokens[0]) is int
            and 0 <= tokens[0] < self._vocab
        )

    def likeliest(self, token: int, slot: DecodeSlot) -> int:
        """The argmax after `token`."""
        self._run(token, slot)
        try:
            return int(self._buffers.argmax.item(0))
        finally:
            self._buffers.bound.leave()

    def logits(self, token: int, slot: DecodeSlot) -> F32Array:
        """The logits after `token`: float32 `[vocab]`, the caller's own."""
        self._run(token, slot)
        try:
            own: F32Array = self._buffers.logits[0].copy()
            return own
        finally:
            self._buffers.bound.leave()

    def borrowed(self, token: int, slot: DecodeSlot) -> BorrowedLogits:
        """The same in place."""
        self._run(token, slot)
        try:
            return BorrowedLogits(self._buffers.logits[0], self._buffers.bound, slot)
        finally:
            self._buffers.bound.leave()

    def _run(self, token: int, slot: DecodeSlot) -> None:
        """Replay; what it leaves is this caller's until `bound.leave()`. Raises WorkspaceBusy, and what the
        device raises: the cache is then as it was."""
        buffers, cache = self._buffers, self._cache
        slot.runs += 1
        start = cache.length
        counts = self._counters.mine
        counts.realize_calls += 1
        counts.bytes_uploaded += buffers.nbytes
        buffers.bound.enter()
        try:
            buffers.token_ids[0] = token
            buffers.start[()] = start
            cos, sin = buffers.ropes.rows(start, 1)
            buffers.rope_cos[...] = cos
            buffers.rope_sin[...] = sin
            buffers.run().wait()
            cache.advance(1)
            slot.statistics.captured += 1
        except BaseException:
            buffers.bound.leave()
            raise
