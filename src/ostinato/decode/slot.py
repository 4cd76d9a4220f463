"""What a token loop holds: its plans, its capture, and what has happened to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from ostinato.decode.capture import CapturedDecodeSession
from ostinato.decode.held import HeldSession
from ostinato.decode.kv_cache import KvRebindSource
from ostinato.decode.proven import ProvenRequest
from ostinato.decode.rebind import RebindRefusal
from ostinato.decode.replay import TokenReplay
from ostinato.decode.session import DecodeSession
from ostinato.decode.shelf import PlanShelf
from ostinato.decode.validity import PlanStructure, PlanValidity, Verdict
from ostinato.device.contract import CaptureRefusal
from ostinato.errors.decode import SlotBusy
from ostinato.runtime.registry import Registry


@dataclass
class SlotStatistics:
    """Tokens by the way they were run, and what became of the plans."""

    replanned: int = 0
    held: int = 0
    captured: int = 0
    sessions_built: int = 0
    rebinds: int = 0
    captures: int = 0
    drops: tuple[str, ...] = ()
    capture_refusal: str | None = None


class DecodeSlot:
    """Mutable holder for one token loop, leased to one user at a time.

    `sessions` are held plans by their row bound; the decode plan is the one of 1. `epoch` grows with every
    lease and every re-bind, `runs` with every lease and every step: logits lent before are stale then.
    `proven` is what the last request was about, `replay` the short way that a captured one leaves.
    """

    def __init__(self, shelf: PlanShelf | None = None) -> None:
        self.shelf = shelf or PlanShelf()
        self.sessions: dict[int, HeldSession] = {}
        self.capture: CapturedDecodeSession | None = None
        self.capture_refusal: CaptureRefusal | None = None
        self.proven: ProvenRequest | None = None
        self.replay: TokenReplay | None = None
        self.statistics = SlotStatistics()
        self.epoch = 0
        self.runs = 0
        self._lease = threading.Lock()

    @property
    def session(self) -> DecodeSession | None:
        """The held decode plan."""
        session = self.sessions.get(1)
        assert session is None or isinstance(session, DecodeSession)
        return session

    @property
    def leased(self) -> bool:
        return self._lease.locked()

    @contextmanager
    def lease(self) -> Iterator[DecodeSlot]:
        """Hold the slot; raises SlotBusy while another does."""
        self.acquire()
        try:
            yield self
        finally:
            self.release()

    def acquire(self) -> None:
        """Raises SlotBusy."""
        if not self._lease.acquire(blocking=False):
            raise SlotBusy()
        self.epoch += 1
        self.runs += 1

    def release(self) -> None:
        self._lease.release()


def retire_capture(slot: DecodeSlot) -> None:
    """Drop a capture, and a refusal to capture, over addresses that are about to go."""
    slot.capture = None
    slot.replay = None
    slot.capture_refusal = None
    slot.statistics.capture_refusal = None


def invalidate_decode_pair(slot: DecodeSlot, reason: str) -> None:
    """Drop the capture and then the sessions: the reader before the owner of what it reads."""
    retire_capture(slot)
    slot.sessions.clear()
    slot.statistics.drops += (reason,)


def leave_other_devices(slot: DecodeSlot, devices: Registry) -> None:
    """Drop sessions made on another registry's devices: the same names are not the same devices."""
    for session in slot.sessions.values():
        if session.devices is not devices:
            invalidate_decode_pair(slot, "the devices are those of another registry")
            break


class Outcome(Enum):
    ABSENT = "absent"
    KEPT = "kept"
    REBOUND = "re-bound"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What became of a slot's sessions; `reason` says why they were dropped."""

    outcome: Outcome
    reason: RebindRefusal | PlanValidity | None = None


_ABSENT, _KEPT = Refreshed(Outcome.ABSENT), Refreshed(Outcome.KEPT)


def refresh_decode_session(slot: DecodeSlot, structure: PlanStructure, source: KvRebindSource) -> Refreshed:
    """Make the slot's sessions serve `structure` over the source's slabs, or drop them.

    All sessions are staged before any is committed, so that they are re-bound together or not at all.
    """
    if not slot.sessions:
        return _ABSENT
    changed = []
    for session in slot.sessions.values():
        verdict = session.validity(structure, source.alloc_id)
        if verdict.verdict is Verdict.STALE:
            invalidate_decode_pair(slot, str(verdict))
            return Refreshed(Outcome.DROPPED, verdict)
        session.structure = structure  # equal in every field: the next comparison finds the same object
        if verdict is not PlanValidity.VALID:
            changed.append(session)
    if slot.capture is not None and slot.capture.is_stale:  # its session was re-bound by another hand
        retire_capture(slot)
    if not changed:
        return _KEPT
    staged = []
    for session in changed:
        rebound = session.stage_kv(source)
        if isinstance(rebound, RebindRefusal):
            invalidate_decode_pair(slot, str(rebound))
            return Refreshed(Outcome.DROPPED, rebound)
        staged.append(rebound)
    retire_capture(slot)
    for session, rebound in zip(changed, staged, strict=True):
        session.commit_kv(rebound)
    slot.epoch += 1
    slot.statistics.rebinds += 1
    return Refreshed(Outcome.REBOUND)
