"""Entry points: one step of a model over a KV cache, planned anew, held, or replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.decode.capture import CapturedDecodeSession
from ostinato.decode.data import check_tokens, data_by_node, shape_data, token_data
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.session import DecodeSession, HeldSession, StepSession, structure_of
from ostinato.decode.slot import (
    DecodeSlot,
    invalidate_decode_pair,
    leave_other_devices,
    refresh_decode_session,
)
from ostinato.decode.step import OUT_ROWS, ROWS, build_step, placement_hints, slab_bindings, step_env
from ostinato.decode.want import LAST, All, Argmax, Hidden, Rows, Want, out_rows, shaped, wanted
from ostinato.device.contract import CaptureRefusal
from ostinato.device.traits import WritePath
from ostinato.errors.decode import CacheMismatch
from ostinato.errors.device import TopologyChanged
from ostinato.models.contract import Model
from ostinato.runtime.context import Bindings, InferenceContext

CHUNK = 512
"""Rows of the held step plan: longer steps run in pieces, so that their memory is bounded."""
BUCKETS = (8, 64, CHUNK)
"""Row counts of held step plans on devices that can't take any count in one plan."""

Ids = npt.NDArray[np.int64]


def forward_with_kv_context(
    model: Model,
    tokens: Sequence[int],
    cache: KvCache,
    context: InferenceContext,
    *,
    want: Want = LAST,
    write_path: WritePath | None = None,
) -> Any:
    """Run `tokens` after what `cache` holds, planning the step anew, and return what `want` asks for.

    Last → float32 `[vocab]` · All → `[seq, vocab]` · Rows → `[n, vocab]` · Hidden → `[seq, dim]` ·
    Argmax → int. The result is the caller's. `write_path` forces one on a device of another.

    Raises InvalidWant, EmptyStep, TokenOutOfRange, CapacityExceeded, CacheMismatch, RowOutOfRange before
    anything runs. Whatever is raised, `cache` attends the same positions as before; its length grows only on
    success.
    """
    request = _Request.checked(model, tokens, cache, context, want, write_path)
    result = request.replan()
    cache.advance(len(request.ids))
    return result


def forward_with_kv_context_persistent(
    model: Model,
    tokens: Sequence[int],
    cache: KvCache,
    context: InferenceContext,
    slot: DecodeSlot,
    *,
    want: Want = LAST,
    write_path: WritePath | None = None,
) -> Any:
    """The same through the slot's held plans, which are built when first needed, re-bound to another cache of
    the same geometry, and dropped when they can't serve. A topology that changed costs one replanned step.
    """
    request = _Request.checked(model, tokens, cache, context, want, write_path)
    return request.healing(slot, request.held)


def forward_with_kv_context_captured(
    model: Model,
    tokens: Sequence[int],
    cache: KvCache,
    context: InferenceContext,
    slot: DecodeSlot,
    *,
    want: Want = LAST,
    write_path: WritePath | None = None,
) -> Any:
    """The same through a capture of the held decode plan, for one token; a longer step, and a plan that can't
    be captured, run held, and the slot's statistics say why."""
    request = _Request.checked(model, tokens, cache, context, want, write_path)
    return request.healing(slot, request.captured)


@dataclass(frozen=True, slots=True)
class _Request:
    """One step to run, checked. Only `healing` moves the cache's length, when all has succeeded."""

    model: Model
    ids: Ids
    cache: KvCache
    context: InferenceContext
    want: Want
    path: WritePath

    @classmethod
    def checked(
        cls,
        model: Model,
        tokens: Sequence[int],
        cache: KvCache,
        context: InferenceContext,
        want: Want,
        write_path: WritePath | None,
    ) -> _Request:
        """Everything that can be wrong with a request is refused here."""
        want = wanted(want)
        ids = check_tokens(model, tokens)
        check_cache(model, cache)
        cache.check_room(len(ids))
        out_rows(want, len(ids))
        return cls(model, ids, cache, context, want, write_path or native_path(cache, context))

    @property
    def one_token(self) -> bool:
        """A step for the decode plan."""
        return len(self.ids) == 1 and not isinstance(self.want, All | Rows)

    def replan(self) -> Any:
        """Build, plan, bind and run."""
        cache, selected = self.cache, out_rows(self.want, len(self.ids))
        step = build_step(self.model, cache.capacity, cache.dtype, self.path, cache.encodings())
        data = {
            **data_by_node(step, token_data(step, self.model, self.ids, cache.length)),
            **shape_data(step, len(self.ids), selected),
        }
        root = {Argmax: step.argmax, Hidden: step.hidden}.get(type(self.want), step.logits)
        (result,) = self.context.realize(
            step.graph,
            step.roots,
            Bindings(self.model.weights, slab_bindings(step, cache), data),
            step_env(cache.length, len(self.ids), len(selected)),
            wanted=[root],
            bounds={ROWS: len(self.ids), OUT_ROWS: len(selected)},
            hints=placement_hints(step, self.model, cache),
        )
        return shaped(self.want, result)

    def healing(self, slot: DecodeSlot, run: Callable[[DecodeSlot], Any]) -> Any:
        """Run held or captured; where the topology has changed, replan this step, the slot starts anew."""
        leave_other_devices(slot, self.context.devices)
        try:
            result = run(slot)
        except TopologyChanged as changed:
            invalidate_decode_pair(slot, str(changed))
            result = self.replan()
            slot.statistics.replanned += 1
        self.cache.advance(len(self.ids))
        return result

    def captured(self, slot: DecodeSlot) -> Any:
        """Replay the capture of the decode plan; held where there is none."""
        capture = None
        if self.one_token:
            self._refresh(slot)
            capture = self._capture(slot)
        if capture is None:
            return self.held(slot)
        data = token_data(capture.session.step, self.model, self.ids, self.cache.length)
        result = capture.replay_token(data, want=self.want)
        slot.statistics.captured += 1
        return result

    def held(self, slot: DecodeSlot) -> Any:
        """Run through the slot's sessions."""
        self._refresh(slot)
        result = self._held_token(slot) if self.one_token else self._held_rows(slot)
        slot.statistics.held += 1
        return result

    def _refresh(self, slot: DecodeSlot) -> None:
        structure = structure_of(self.model, self.cache, self.path, self.context.location)
        refresh_decode_session(slot, structure, self.cache)

    def _held_token(self, slot: DecodeSlot) -> Any:
        session = self._session(slot, 1, self.ids)
        assert isinstance(session, DecodeSession)
        data = token_data(session.step, self.model, self.ids, self.cache.length)
        env = session.per_token_sym_env(self.cache.length)
        return session.realize_token(self.context.location, data, env, want=self.want)

    def _held_rows(self, slot: DecodeSlot) -> Any:
        """Longer steps run in pieces."""
        rows = len(self.ids)
        if rows <= CHUNK:
            return self._piece(slot, 0, rows, out_rows(self.want, rows))
        selected = sorted(set(out_rows(self.want, rows)))
        results = []
        for done in range(0, rows, CHUNK):
            end = min(done + CHUNK, rows)
            mine = [row - done for row in selected if done <= row < end]
            results.append(self._piece(slot, done, end, mine))
        if isinstance(self.want, All | Hidden):
            return np.concatenate(results)
        if isinstance(self.want, Rows):
            at = {row: i for i, row in enumerate(selected)}
            return np.concatenate(results)[[at[row] for row in self.want.indices]]
        return results[-1]

    def _piece(self, slot: DecodeSlot, done: int, end: int, selected: Sequence[int]) -> Any:
        """Rows `done` … `end` - 1, at most CHUNK; `selected` counts from `done`."""
        ids, start, count = self.ids[done:end], self.cache.length + done, end - done
        dynamic = self._dynamic_rows()
        bound = CHUNK if dynamic else next(bucket for bucket in BUCKETS if count <= bucket)
        session = self._session(slot, bound, ids)
        assert isinstance(session, StepSession)
        if not dynamic:  # rows ≥ count are computed and never written
            ids = np.pad(ids, (0, bound - count))
        if not isinstance(self.want, All | Rows):
            selected = (count - 1,)
        data = token_data(session.step, self.model, ids, start)
        env = step_env(start, len(ids), len(selected), count)
        result = session.realize_rows(data, env, count, selected, self.want)
        return result[:count] if isinstance(self.want, Hidden) else result

    def _dynamic_rows(self) -> bool:
        """Whether every device at work takes any row count in one plan."""
        places = {self.context.location, *(place for pair in self.cache.locations() for place in pair)}
        return all(self.context.devices.device(place).traits.dynamic_rows for place in places)

    def _session(self, slot: DecodeSlot, rows: int, ids: Ids) -> HeldSession:
        """The slot's session of this row bound, built where there is none."""
        session = slot.sessions.get(rows)
        if session is None:
            kind = DecodeSession if rows == 1 else StepSession
            session = kind.build(self.context, self.model, self.cache, self.path, rows, ids, slot.shelf)
            slot.sessions[rows] = session
            slot.statistics.sessions_built += 1
        return session

    def _capture(self, slot: DecodeSlot) -> CapturedDecodeSession | None:
        """The slot's capture, made where there is none; None where the plan can't be captured."""
        if slot.capture is None and slot.capture_refusal is None:
            session = self._session(slot, 1, self.ids)
            assert isinstance(session, DecodeSession)
            made = CapturedDecodeSession.capture(session, self.context)
            if isinstance(made, CaptureRefusal):
                slot.capture_refusal = made
                slot.statistics.capture_refusal = made.reason
            else:
                slot.capture = made
                slot.statistics.captures += 1
        return slot.capture


def native_path(cache: KvCache, context: InferenceContext) -> WritePath:
    """The write path of the slabs' devices; symbols, which every device understands, where they differ."""
    places = {place for pair in cache.locations() for place in pair}
    paths = {context.devices.device(place).traits.write_path for place in places}
    return paths.pop() if len(paths) == 1 else WritePath.SYMBOLIC


def check_cache(model: Model, cache: KvCache) -> None:
    """Raises CacheMismatch naming the first difference between the cache and the model's KV geometry."""
    expected = model.config.kv
    if len(cache.geometry) != len(expected):
        raise CacheMismatch("layers", str(len(expected)), str(len(cache.geometry)))
    for i, (mine, theirs) in enumerate(zip(expected, cache.geometry, strict=True)):
        for field in ("kv_heads", "k_dim", "v_dim", "window"):
            if getattr(mine, field) != getattr(theirs, field):
                raise CacheMismatch(
                    f"layer {i} {field}", str(getattr(mine, field)), str(getattr(theirs, field))
                )
