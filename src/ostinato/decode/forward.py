"""Entry points: one step of a model over a KV cache, planned anew, held, or replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    Raises EmptyStep, TokenOutOfRange, CapacityExceeded, CacheMismatch, RowOutOfRange before anything runs.
    Whatever is raised, `cache` attends the same positions as before; its length grows only on success.
    """
    want = wanted(want)
    ids, path = _checked(model, tokens, cache, context, want, write_path)
    result = _replan(model, ids, cache, context, want, path)
    cache.advance(len(ids))
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
    want = wanted(want)
    ids, path = _checked(model, tokens, cache, context, want, write_path)

    def held() -> Any:
        result = _held(model, ids, cache, context, slot, want, path)
        slot.statistics.held += 1
        return result

    return _healing(model, ids, cache, context, slot, want, path, held)


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
    want = wanted(want)
    ids, path = _checked(model, tokens, cache, context, want, write_path)

    def replayed() -> Any:
        capture = None
        if len(ids) == 1 and not isinstance(want, All | Rows):
            refresh_decode_session(slot, structure_of(model, cache, path, context.location), cache)
            capture = _capture(model, ids, cache, context, slot, path)
        if capture is None:
            result = _held(model, ids, cache, context, slot, want, path)
            slot.statistics.held += 1
            return result
        result = capture.replay_token(token_data(capture.session.step, model, ids, cache.length), want=want)
        slot.statistics.captured += 1
        return result

    return _healing(model, ids, cache, context, slot, want, path, replayed)


def _checked(
    model: Model,
    tokens: Sequence[int],
    cache: KvCache,
    context: InferenceContext,
    want: Want,
    write_path: WritePath | None,
) -> tuple[Ids, WritePath]:
    """Everything that can be wrong with a request; and its write path."""
    ids = check_tokens(model, tokens)
    check_cache(model, cache)
    cache.check_room(len(ids))
    out_rows(want, len(ids))
    return ids, write_path or native_path(cache, context)


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


def _replan(
    model: Model, ids: Ids, cache: KvCache, context: InferenceContext, want: Want, path: WritePath
) -> Any:
    """Build, plan, bind and run; the cache's length stays."""
    selected = out_rows(want, len(ids))
    step = build_step(model, cache.capacity, cache.dtype, path)
    data = {
        **data_by_node(step, token_data(step, model, ids, cache.length)),
        **shape_data(step, len(ids), selected),
    }
    root = {Argmax: step.argmax, Hidden: step.hidden}.get(type(want), step.logits)
    (result,) = context.realize(
        step.graph,
        step.roots,
        Bindings(model.weights, slab_bindings(step, cache), data),
        step_env(cache.length, len(ids), len(selected)),
        wanted=[root],
        bounds={ROWS: len(ids), OUT_ROWS: len(selected)},
        hints=placement_hints(step, model, cache),
    )
    return shaped(want, result)


def _healing(
    model: Model,
    ids: Ids,
    cache: KvCache,
    context: InferenceContext,
    slot: DecodeSlot,
    want: Want,
    path: WritePath,
    run: Callable[[], Any],
) -> Any:
    """Run held or captured; where the topology has changed, replan this step and let the slot start anew."""
    leave_other_devices(slot, context.devices)
    try:
        result = run()
    except TopologyChanged as changed:
        invalidate_decode_pair(slot, str(changed))
        result = _replan(model, ids, cache, context, want, path)
        slot.statistics.replanned += 1
    cache.advance(len(ids))
    return result


def _held(
    model: Model,
    ids: Ids,
    cache: KvCache,
    context: InferenceContext,
    slot: DecodeSlot,
    want: Want,
    path: WritePath,
) -> Any:
    """Run through the slot's sessions, longer steps in pieces; the cache's length stays."""
    refresh_decode_session(slot, structure_of(model, cache, path, context.location), cache)
    if len(ids) == 1 and not isinstance(want, All | Rows):
        session = _session(model, ids, cache, context, slot, path, 1)
        assert isinstance(session, DecodeSession)
        data = token_data(session.step, model, ids, cache.length)
        return session.realize_token(
            context.location, data, session.per_token_sym_env(cache.length), want=want
        )
    if len(ids) <= CHUNK:
        return _piece(model, ids, 0, out_rows(want, len(ids)), cache, context, slot, want, path)
    pieces = [ids[at : at + CHUNK] for at in range(0, len(ids), CHUNK)]
    selected = set(out_rows(want, len(ids)))
    results = []
    for at, piece in enumerate(pieces):
        mine = [row - at * CHUNK for row in selected if at * CHUNK <= row < at * CHUNK + len(piece)]
        results.append(_piece(model, piece, at * CHUNK, sorted(mine), cache, context, slot, want, path))
    if isinstance(want, All | Hidden):
        return np.concatenate(results)
    if isinstance(want, Rows):
        found = dict(zip(sorted(selected), np.concatenate(results), strict=True))
        return np.stack([found[row] for row in want.indices]) if want.indices else results[-1]
    return results[-1]


def _piece(
    model: Model,
    ids: Ids,
    done: int,
    selected: Sequence[int],
    cache: KvCache,
    context: InferenceContext,
    slot: DecodeSlot,
    want: Want,
    path: WritePath,
) -> Any:
    """Up to CHUNK rows of a step, `done` of its rows after the cache's length."""
    rows = _bucket(len(ids), cache, context)
    session = _session(model, ids, cache, context, slot, path, rows)
    assert isinstance(session, StepSession)
    count, start = len(ids), cache.length + done
    padded = ids
    if not _dynamic(cache, context):
        padded = np.zeros(rows, np.int64)  # rows ≥ count are computed and never written
        padded[:count] = ids
    rows_wanted = selected if isinstance(want, All | Rows) else (count - 1,)
    env = step_env(start, len(padded), len(rows_wanted), count)
    result = session.realize_rows(
        token_data(session.step, model, padded, start), env, count, rows_wanted, want
    )
    return result[:count] if isinstance(want, Hidden) else result


def _session(
    model: Model,
    ids: Ids,
    cache: KvCache,
    context: InferenceContext,
    slot: DecodeSlot,
    path: WritePath,
    rows: int,
) -> HeldSession:
    """The slot's session of this row bound, built where there is none."""
    session = slot.sessions.get(rows)
    if session is None:
        kind = DecodeSession if rows == 1 else StepSession
        session = kind.build(context, model, cache, path, rows, ids, slot.shelf)
        slot.sessions[rows] = session
        slot.statistics.sessions_built += 1
    return session


def _capture(
    model: Model, ids: Ids, cache: KvCache, context: InferenceContext, slot: DecodeSlot, path: WritePath
) -> CapturedDecodeSession | None:
    """The slot's capture, made where there is none; None where the plan can't be captured."""
    if slot.capture is None and slot.capture_refusal is None:
        session = _session(model, ids, cache, context, slot, path, 1)
        assert isinstance(session, DecodeSession)
        made = CapturedDecodeSession.capture(session, context)
        if isinstance(made, CaptureRefusal):
            slot.capture_refusal = made
            slot.statistics.capture_refusal = made.reason
        else:
            slot.capture = made
            slot.statistics.captures += 1
    return slot.capture


def _dynamic(cache: KvCache, context: InferenceContext) -> bool:
    places = {context.location, *(place for pair in cache.locations() for place in pair)}
    return all(context.devices.device(place).traits.dynamic_rows for place in places)


def _bucket(rows: int, cache: KvCache, context: InferenceContext) -> int:
    """The row bound of the held plan for `rows`: one for all where rows are dynamic."""
    if _dynamic(cache, context):
        return CHUNK
    return next(bucket for bucket in BUCKETS if rows <= bucket)
