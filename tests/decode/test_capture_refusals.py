"""When a plan is captured, when it isn't and why, and that a device that grants too much changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from decode.sessionkit import ALONE, CAPTURED, FRAIL, HELD, World, micro_llama, same_bits, tokens_of, world
from devices.delayed import DelayedBound, DelayedCapture, DelayedDevice, InjectedFailure, shaped
from ostinato.decode import capture as capture_module
from ostinato.decode.capture import CapturedDecodeSession
from ostinato.decode.data import token_data
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import All, Argmax, Hidden
from ostinato.device.contract import CaptureRefusal
from ostinato.device.traits import WritePath
from ostinato.ir import Location, SymEnv
from ostinato.ir.shape import NodeId
from ostinato.runtime.registry import Registry

pytestmark = pytest.mark.usefixtures("one_thread")


def spread() -> World:
    devices = Registry()
    for ordinal in (0, 1):
        devices.register(DelayedDevice(ordinal))
    return World(devices, (Location("delayed", 0), Location("delayed", 1)))


CASES: dict[str, tuple[Callable[[], World], WritePath, str]] = {
    "copies between two CPUs": (
        lambda: world("two cpus"), WritePath.DEVICE_OFFSET, "copies from cpu:0 to cpu:1",
    ),
    "a position in the CPU's symbols": (lambda: world("symbolic cpu"), WritePath.SYMBOLIC, "symbols"),
    "copies between devices": (spread, WritePath.DEVICE_OFFSET, "copies from delayed:0 to delayed:1"),
    "a position in the symbols": (lambda: world("delayed"), WritePath.SYMBOLIC, "symbols"),
    "a device that can't": (
        lambda: world("delayed", can_capture=False), WritePath.DEVICE_OFFSET, "delayed:0 can't capture",
    ),
}  # fmt: skip


def check_fallback(case: str) -> None:
    """Each token is the held plan's, and the slot says why; asked once, not for every token."""
    made, path, reason = CASES[case]
    place, model, slot = made(), micro_llama(), DecodeSlot()
    cache = place.cache(model)
    CAPTURED(model, tokens_of(4), cache, place, slot, write_path=path)
    for token in (1, 2, 3):
        expected = place.oracle(model, [token], cache, path=path)
        same_bits(CAPTURED(model, [token], cache, place, slot, write_path=path), expected)
    statistics = slot.statistics
    assert (statistics.held, statistics.captured, statistics.captures) == (4, 0, 0)
    assert isinstance(slot.capture_refusal, CaptureRefusal)
    assert reason in slot.capture_refusal.reason
    assert statistics.capture_refusal == slot.capture_refusal.reason
    assert slot.capture is None


@pytest.mark.parametrize("case", CASES)
def test_a_refused_capture_runs_held(case: str) -> None:
    check_fallback(case)


def generous(self: DelayedBound, varying: Sequence[NodeId], env: SymEnv) -> Any:
    """A device that captures whatever it is given."""
    slots = {slot.node: slot for slot in self._program.segment.inputs}
    known = dict(zip(slots, self._inputs, strict=True))
    return DelayedCapture(self, {n: (slots[n], shaped(slots[n], known[n], env)) for n in varying}, env)


@pytest.mark.parametrize("case", CASES)
def test_the_refusal_doesn_t_rest_on_the_device(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DelayedBound, "freeze", generous)
    check_fallback(case)


def test_a_captured_symbol_would_stay_the_first_token_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why it is refused."""
    monkeypatch.setattr(DelayedBound, "freeze", generous)
    place, model, slot = world("delayed"), micro_llama(), DecodeSlot()
    cache = place.cache(model)
    for step in (tokens_of(4), [4]):
        HELD(model, step, cache, place, slot, write_path=WritePath.SYMBOLIC)
    session = slot.session
    assert session is not None
    with monkeypatch.context() as patch:
        patch.setattr(type(session), "offset_node", property(lambda self: 0))
        made = CapturedDecodeSession.capture(session, place.context)
    assert isinstance(made, CapturedDecodeSession)
    expected = place.oracle(model, [9], cache, path=WritePath.SYMBOLIC)
    got = made.replay_token(token_data(session.step, model, np.array([9]), cache.length))
    assert got.tobytes() != expected.tobytes()


@pytest.mark.parametrize("where", ALONE)
def test_what_is_captured_and_what_is_held(where: str) -> None:
    place, model, slot = world(where), micro_llama(), DecodeSlot()
    cache = place.cache(model)
    steps: list[tuple[list[int], Any]] = [
        ([1, 2], None), ([3], None), ([4], Argmax()), ([5], Hidden()), ([6], All()), ([7, 8], None),
        ([9], None),
    ]  # fmt: skip
    for step, want in steps:
        more = {} if want is None else {"want": want}
        CAPTURED(model, step, cache, place, slot, **more)
    statistics = slot.statistics
    assert (statistics.captured, statistics.held, statistics.captures) == (4, 3, 1)


@pytest.mark.parametrize("where", FRAIL)
def test_a_capture_keeps_what_it_reads(where: str) -> None:
    """Its own buffers live as long as it does, and are none of the session's."""
    place, model, slot = world(where), micro_llama(), DecodeSlot()
    cache: KvCache | None = place.cache(model)
    assert cache is not None
    CAPTURED(model, [1], cache, place, slot)
    session, made = slot.session, slot.capture
    assert session is not None
    assert made is not None
    own = capture_module._own_buffers(session, place.context)
    baked = session.base_cache.of_graph(session.step.graph.id)
    assert set(own) == {
        session.token_ids_node,
        session.rope_cos_node,
        session.rope_sin_node,
        session.offset_node,
    }
    assert not {id(storage) for storage in own.values()} & {id(storage) for storage in baked.values()}
    data = token_data(session.step, model, np.array([2]), 1)
    expected = place.oracle(model, [2], cache)
    slot.capture = None
    slot.sessions.clear()
    del session, own, baked
    same_bits(made.replay_token(data), expected)


@pytest.mark.parametrize(
    ("where", "options"),
    [("delayed", {"late": False}), ("delayed", {"late": True}), ("cpu", {})],
    ids=["at once", "late", "cpu"],
)
def test_a_capture_that_fails_can_be_replayed(where: str, options: dict[str, Any]) -> None:
    place, model, slot = world(where, **options), micro_llama(), DecodeSlot()
    cache = place.cache(model)
    CAPTURED(model, [1], cache, place, slot)
    made = slot.capture
    for after in (0, 5, 12) if where == "cpu" else (0, 50, 120):
        place.device().fail_after = after
        with pytest.raises(InjectedFailure):
            CAPTURED(model, [30 + after // 10], cache, place, slot)
        assert slot.capture is made
        expected = place.oracle(model, [2], cache)
        same_bits(CAPTURED(model, [2], cache, place, slot), expected)
