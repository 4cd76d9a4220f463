"""One step to run: checked once, then run in one of the three ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ostinato.decode.borrowed import BorrowedLogits
from ostinato.decode.capture import CapturedDecodeSession
from ostinato.decode.data import DecodeTokenData, check_tokens, data_by_node, shape_data, token_data
from ostinato.decode.held import HeldSession
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.proven import ProvenRequest
from ostinato.decode.replay import TokenReplay
from ostinato.decode.session import DecodeSession, StepSession
from ostinato.decode.shelf import structure_of
from ostinato.decode.slot import (
    DecodeSlot,
    invalidate_decode_pair,
    leave_other_devices,
    refresh_decode_session,
)
from ostinato.decode.step import OUT_ROWS, ROWS, build_step, placement_hints, slab_bindings, step_env
from ostinato.decode.validity import PlanStructure
from ostinato.decode.want import (
    All,
    Argmax,
    F32Array,
    Hidden,
    Result,
    Rows,
    Want,
    out_rows,
    shaped,
    wanted,
)
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
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class StepRequest:
    """One step to run, checked. Only `healing` moves the cache's length, when all has succeeded."""

    model: Model
    ids: Ids
    cache: KvCache
    context: InferenceContext
    want: Want
    structure: PlanStructure

    @classmethod
    def checked(
        cls,
        model: Model,
        tokens: Sequence[int],
        cache: KvCache,
        context: InferenceContext,
        want: Want,
        write_path: WritePath | None,
        slot: DecodeSlot | None = None,
    ) -> StepRequest:
        """Everything that can be wrong with a request is refused here."""
        want = wanted(want)
        ids = check_tokens(model, tokens)
        proven = None if slot is None else slot.proven
        if proven is None or not proven.covers(model, cache, context, write_path):
            check_cache(model, cache)
            path = write_path or native_path(cache, context)
            structure = structure_of(model, cache, path, context.location)
            proven = ProvenRequest.of(model, cache, context, write_path, structure)
            if slot is not None:
                slot.proven = proven
        cache.check_room(len(ids))
        out_rows(want, len(ids))
        return cls(model, ids, cache, context, want, proven.structure)

    @property
    def one_token(self) -> bool:
        """A step for the decode plan."""
        return len(self.ids) == 1 and not isinstance(self.want, All | Rows)

    def replan(self) -> Result:
        """Build, plan, bind and run."""
        cache, path = self.cache, self.structure.write_path
        selected = out_rows(self.want, len(self.ids))
        step = build_step(self.model, cache.capacity, cache.dtype, path, cache.encodings())
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

    def healing(self, slot: DecodeSlot, run: Callable[[DecodeSlot], T], replan: Callable[[], T]) -> T:
        """Run held or captured; where the topology has changed, replan this step, the slot starts anew."""
        slot.runs += 1
        leave_other_devices(slot, self.context.devices)
        try:
            result = run(slot)
        except TopologyChanged as changed:
            invalidate_decode_pair(slot, str(changed))
            result = replan()
            slot.statistics.replanned += 1
        self.cache.advance(len(self.ids))
        return result

    def captured(self, slot: DecodeSlot) -> Result:
        """Replay the capture of the decode plan; held where there is none."""
        refresh_decode_session(slot, self.structure, self.cache)
        capture = self._capture(slot)
        if capture is None:
            return self._held(slot)
        result = capture.replay_token(self._token(capture.session), want=self.want)
        slot.statistics.captured += 1
        slot.replay = TokenReplay.of(slot.proven, self.cache, self.context, capture)
        return result

    def held(self, slot: DecodeSlot) -> Result:
        """Run through the slot's sessions."""
        refresh_decode_session(slot, self.structure, self.cache)
        return self._held(slot)

    def borrowed(self, slot: DecodeSlot, captured: bool) -> BorrowedLogits:
        """Captured or held, the last row's logits in place."""
        refresh_decode_session(slot, self.structure, self.cache)
        capture = self._capture(slot) if captured else None
        if capture is not None:
            lent = capture.borrow_token(self._token(capture.session))
            slot.statistics.captured += 1
            slot.replay = TokenReplay.of(slot.proven, self.cache, self.context, capture)
        elif self.one_token:
            session = self._decode_session(slot)
            env = session.per_token_sym_env(self.cache.length)
            lent = session.borrow_token(self.context.location, self._token(session), env)
            slot.statistics.held += 1
        else:
            lent = BorrowedLogits(_array(self._held(slot)))
        return lent.lent_by(slot)

    def replanned_loan(self, slot: DecodeSlot) -> BorrowedLogits:
        """Replanned logits are a copy, lent on the same terms."""
        return BorrowedLogits(_array(self.replan()), slot)

    def _held(self, slot: DecodeSlot) -> Result:
        if self.one_token:
            session = self._decode_session(slot)
            env = session.per_token_sym_env(self.cache.length)
            result = session.realize_token(self.context.location, self._token(session), env, want=self.want)
        else:
            result = self._held_rows(slot)
        slot.statistics.held += 1
        return result

    def _token(self, session: DecodeSession) -> DecodeTokenData:
        return session.data_of(self.ids, self.cache.length)

    def _decode_session(self, slot: DecodeSlot) -> DecodeSession:
        session = self._session(slot, 1, self.ids)
        assert isinstance(session, DecodeSession)
        return session

    def _held_rows(self, slot: DecodeSlot) -> Result:
        """Longer steps run in pieces."""
        rows = len(self.ids)
        if rows <= CHUNK:
            return self._piece(slot, 0, rows, out_rows(self.want, rows))
        selected = sorted(set(out_rows(self.want, rows)))
        results: list[Result] = []
        for done in range(0, rows, CHUNK):
            end = min(done + CHUNK, rows)
            mine = [row - done for row in selected if done <= row < end]
            results.append(self._piece(slot, done, end, mine))
        if isinstance(self.want, All | Hidden):
            return np.concatenate([_array(piece) for piece in results])
        if isinstance(self.want, Rows):
            at = {row: i for i, row in enumerate(selected)}
            return np.concatenate([_array(piece) for piece in results])[
                [at[row] for row in self.want.indices]
            ]
        return results[-1]

    def _piece(self, slot: DecodeSlot, done: int, end: int, selected: Sequence[int]) -> Result:
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
        data = session.data_of(ids, start)
        env = step_env(start, len(ids), len(selected), count)
        result = session.realize_rows(data, env, count, selected, self.want)
        return _array(result)[:count] if isinstance(self.want, Hidden) else result

    def _dynamic_rows(self) -> bool:
        """Whether every device at work takes any row count in one plan."""
        places = {self.context.location, *(place for pair in self.cache.locations() for place in pair)}
        return all(self.context.devices.device(place).traits.dynamic_rows for place in places)

    def _session(self, slot: DecodeSlot, rows: int, ids: Ids) -> HeldSession:
        """The slot's session of this row bound, built where there is none."""
        session = slot.sessions.get(rows)
        if session is None:
            kind = DecodeSession if rows == 1 else StepSession
            path = self.structure.write_path
            session = kind.build(self.context, self.model, self.cache, path, rows, ids, slot.shelf)
            slot.sessions[rows] = session
            slot.statistics.sessions_built += 1
        return session

    def _capture(self, slot: DecodeSlot) -> CapturedDecodeSession | None:
        """The slot's capture, made where there is none; None for more than a token, and for a plan that can't
        be captured."""
        if not self.one_token:
            return None
        if slot.capture is None and slot.capture_refusal is None:
            made = CapturedDecodeSession.capture(self._decode_session(slot), self.context)
            if isinstance(made, CaptureRefusal):
                slot.capture_refusal = made
                slot.statistics.capture_refusal = made.reason
            else:
                slot.capture = made
                slot.statistics.captures += 1
        return slot.capture


def _array(result: Result) -> F32Array:
    """The result of a want that is no Argmax."""
    assert not isinstance(result, int)
    return result


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
