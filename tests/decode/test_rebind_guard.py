"""The guarded re-bind: each refusal by itself, all or nothing, and what a slot does with the outcome."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from decode.sessionkit import (
    ALONE,
    CAPTURED,
    FRAIL,
    HELD,
    World,
    micro_llama,
    micro_phi,
    same_bits,
    tokens_of,
    world,
)  # fmt: skip
from devices.running import piece, raw
from ostinato.decode import rebind
from ostinato.decode.data import token_data
from ostinato.decode.held import HeldSession
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.rebind import RebindRefusal, RefusalReason
from ostinato.decode.session import DecodeSession
from ostinato.decode.shelf import structure_of
from ostinato.decode.slot import DecodeSlot, Outcome, invalidate_decode_pair, refresh_decode_session
from ostinato.decode.validity import PlanValidity
from ostinato.device.storage import Part, Storage
from ostinato.device.traits import WritePath
from ostinato.errors import BindingMismatch, StaleCapture
from ostinato.ir import DType, Location
from ostinato.ir import encoding as enc
from ostinato.runtime.storage_cache import StorageCache
from sabotage import NOTICED, goes_red

pytestmark = pytest.mark.usefixtures("one_thread")

WHERE = ("reference", "cpu")
by_where = pytest.mark.parametrize("where", WHERE)
by_frail = pytest.mark.parametrize("where", FRAIL)


@dataclass
class Source:
    """What a cache offers, with something changed."""

    cache: KvCache
    location: Callable[[Location | None], Location | None] = lambda place: place
    slot: Callable[[int, int, Storage | None], Storage | None] = lambda layer, index, storage: storage

    @property
    def alloc_id(self) -> int:
        return self.cache.alloc_id

    def rebind_location(self) -> Location | None:
        return self.location(self.cache.rebind_location())

    def rebind_slot(self, layer: int, index: int) -> Storage | None:
        return self.slot(layer, index, self.cache.rebind_slot(layer, index))


def at(layer: int, index: int, change: Callable[[Storage], Storage | None]) -> Callable[..., Storage | None]:
    """That slot changed, the others as they are."""
    return lambda i, j, storage: change(storage) if (i, j) == (layer, index) else storage


def shrunk(storage: Storage) -> Storage:
    (part,) = storage.parts
    return replace(storage, parts=(piece(part, part.role, 0, part.nbytes - 4),))


def split_in_two(storage: Storage) -> Storage:
    (part,) = storage.parts
    half = part.nbytes // 2
    parts = (piece(part, part.role, 0, half), piece(part, "scales", half, part.nbytes))
    return replace(storage, parts=parts)


def renamed(storage: Storage) -> Storage:
    (part,) = storage.parts
    return replace(storage, parts=(Part("scales", part.nbytes, part.data),))


# name → (what is changed, the reason, the slot at fault, the field)
OFFERS: dict[str, tuple[dict[str, Any], RefusalReason, tuple[int, int] | None, str | None]] = {
    "unknown residency": (
        {"location": lambda place: None}, RefusalReason.RESIDENCY_UNKNOWN, None, None,
    ),
    "location says another ordinal": (
        {"location": lambda place: Location(place.kind, 1)}, RefusalReason.RESIDENCY_DIFFERS, (0, 0), None,
    ),
    "slab of another ordinal": (
        {"slot": at(1, 0, lambda s: replace(s, location=Location(s.location.kind, 1)))},
        RefusalReason.RESIDENCY_DIFFERS, (1, 0), None,
    ),
    "slab of another kind": (
        {"slot": at(0, 1, lambda s: replace(s, location=Location("elsewhere", 0)))},
        RefusalReason.RESIDENCY_DIFFERS, (0, 1), None,
    ),
    "all of it on another device": (
        {
            "location": lambda place: Location("elsewhere", 0),
            "slot": lambda i, j, s: replace(s, location=Location("elsewhere", 0)),
        },
        RefusalReason.RESIDENCY_DIFFERS, (0, 0), None,
    ),
    "missing slot": ({"slot": at(1, 1, lambda s: None)}, RefusalReason.MISSING_SLOT, (1, 1), None),
    "dtype": (
        {"slot": at(1, 1, lambda s: replace(s, dtype=DType.F16))},
        RefusalReason.STORAGE_DIFFERS, (1, 1), "dtype",
    ),
    "encoding": (
        {"slot": at(1, 1, lambda s: replace(s, encoding=enc.I32))},
        RefusalReason.STORAGE_DIFFERS, (1, 1), "encoding",
    ),
    "parts": ({"slot": at(1, 1, split_in_two)}, RefusalReason.STORAGE_DIFFERS, (1, 1), "bundling"),
    "roles": ({"slot": at(1, 1, renamed)}, RefusalReason.STORAGE_DIFFERS, (1, 1), "bundling"),
    "extent": ({"slot": at(1, 1, shrunk)}, RefusalReason.STORAGE_DIFFERS, (1, 1), "nbytes"),
}  # fmt: skip


def ready(
    where: str = "reference", kv: enc.Encoding = enc.F32
) -> tuple[World, Any, DecodeSlot, DecodeSession, KvCache]:
    """A slot with both sessions over a cache of six positions."""
    place, model, slot = world(where), micro_llama(), DecodeSlot()
    cache = place.cache(model, dtype=kv)
    HELD(model, tokens_of(5), cache, place, slot)
    HELD(model, [5], cache, place, slot)
    assert slot.session is not None
    return place, model, slot, slot.session, cache


def state(session: HeldSession) -> tuple[Any, ...]:
    storages = session.base_cache.of_graph(session.step.graph.id)
    return session.base_cache, dict(storages), session._bound, session.epoch, session.alloc_id


def next_logits(place: World, model: Any, session: DecodeSession, cache: KvCache) -> np.ndarray:
    data = token_data(session.step, model, np.array([9]), cache.length)
    result = session.realize_token(session.location, data, session.per_token_sym_env(cache.length))
    assert isinstance(result, np.ndarray)
    return result


def check_refusal(name: str, where: str) -> None:
    """The offer is refused for exactly its reason, and nothing at all has changed."""
    place, model, _, session, cache = ready(where)
    changes, reason, fault, field = OFFERS[name]
    expected, before = place.oracle(model, [9], cache), state(session)
    refusal = session.rebind_kv(Source(place.cache(model), **changes))
    assert isinstance(refusal, RebindRefusal)
    assert refusal.reason is reason
    assert (refusal.layer, refusal.index) == (fault or (None, None))
    assert refusal.field == field
    assert reason.value in str(refusal)
    assert state(session) == before
    same_bits(next_logits(place, model, session, cache), expected)


@pytest.mark.parametrize("name", OFFERS)
@by_where
def test_each_difference_alone_is_refused(name: str, where: str) -> None:
    check_refusal(name, where)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(("change", "field"), [(renamed, "bundling"), (shrunk, "nbytes")])
@by_where
def test_every_slot_is_looked_at(layer: int, index: int, change: Any, field: str, where: str) -> None:
    place, model, _, session, _ = ready(where)
    refusal = session.rebind_kv(Source(place.cache(model), slot=at(layer, index, change)))
    assert refusal == RebindRefusal(RefusalReason.STORAGE_DIFFERS, layer, index, field)


def test_parts_of_other_extents_and_the_same_sum_are_refused() -> None:
    from ostinato.decode.rebind import storage_difference

    array = np.zeros(12, np.float32)

    def storage(first: int) -> Storage:
        parts = (Part("values", first, array), Part("scales", 48 - first, array))
        return Storage(Location("reference"), DType.F32, enc.F32, parts)

    assert storage_difference(storage(32), storage(32)) is None
    assert storage_difference(storage(32), storage(40)) == "nbytes"


def check_unbaked() -> None:
    """A plan without a slab in its base cache has nothing to compare with."""
    place, model, _, session, cache = ready()
    before = state(session)
    complete = session.base_cache
    session.base_cache = StorageCache()
    node = session.kv_nodes[1][0]
    for each, storage in complete.of_graph(session.step.graph.id).items():
        if each != node:
            session.base_cache.bind(session.step.graph.id, session.optimized.nodes[each], storage)
    refusal = session.rebind_kv(place.cache(model))
    assert refusal == RebindRefusal(RefusalReason.UNBAKED_SLOT, 1, 0)
    session.base_cache = complete
    assert state(session) == before
    same_bits(next_logits(place, model, session, cache), place.oracle(model, [9], rewritten(place, cache)))


def rewritten(place: World, cache: KvCache) -> KvCache:
    return place.copy(cache)


def test_an_unbaked_slot_is_refused() -> None:
    check_unbaked()


def test_the_comparison_is_with_what_is_baked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with what the session's structure says of itself."""
    place, model, _, session, _ = ready()
    session.structure = replace(session.structure, cache_dtype=enc.F16, max_seq_len=1, locations=())
    assert session.rebind_kv(place.cache(model)) is None
    other = place.cache(model, dtype=enc.F16)
    refusal = session.rebind_kv(other)
    assert refusal == RebindRefusal(RefusalReason.STORAGE_DIFFERS, 0, 0, "dtype")


KV_TYPES = (enc.F32, enc.F16, enc.Q8_0)


def check_other_kv_type(where: str, mine: enc.Encoding, other: enc.Encoding) -> None:
    """A plan over slabs of one KV type takes none of another, by what is baked alone."""
    place, model, _, session, cache = ready(where, mine)
    expected, before = place.oracle(model, [9], cache), state(session)
    refusal = session.rebind_kv(place.cache(model, dtype=other))
    assert isinstance(refusal, RebindRefusal)
    assert (refusal.reason, refusal.layer, refusal.index) == (RefusalReason.STORAGE_DIFFERS, 0, 0)
    assert refusal.field == ("encoding" if enc.element(mine) is enc.element(other) else "dtype")
    assert state(session) == before
    same_bits(next_logits(place, model, session, cache), expected)


@pytest.mark.parametrize("where", ["reference", "cpu"])
@pytest.mark.parametrize(("mine", "other"), list(itertools.permutations(KV_TYPES, 2)), ids=str)
def test_another_kv_type_is_refused_and_replanned(
    where: str, mine: enc.Encoding, other: enc.Encoding
) -> None:
    check_other_kv_type(where, mine, other)
    place, model, slot, session, _ = ready(where, mine)
    cache = place.cache(model, dtype=other)
    for token in (3, 4):
        expected = place.oracle(model, [token], cache)
        same_bits(HELD(model, [token], cache, place, slot), expected)
    assert slot.session is not session
    (drop,) = slot.statistics.drops
    assert "cache_dtype" in str(drop)


@pytest.mark.parametrize("where", ["reference", "cpu"])
def test_sabotage_the_encoding_is_what_tells_f32_and_q8_0_apart(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are float32 to the graph."""

    def blind(held: Storage, offered: Storage) -> str | None:
        return "dtype" if held.dtype is not offered.dtype else None

    goes_red(
        monkeypatch, rebind, "storage_difference", blind,
        lambda: check_other_kv_type(where, enc.F32, enc.Q8_0), expect=(*NOTICED, BindingMismatch),
    )  # fmt: skip


@pytest.mark.parametrize("where", [*ALONE, "bucketed", "symbolic cpu"])
def test_a_rebind_serves_the_new_cache_and_leaves_the_old(where: str) -> None:
    place, model, _, session, cache = ready(where)
    other = place.cache(model)
    place.fill(other, 11, seed=4)
    old, untouched = place.checksum(cache), state(session)
    expected = place.oracle(model, [9], other)
    assert session.rebind_kv(other) is None
    assert session.epoch == untouched[3] + 1
    assert session.alloc_id == other.alloc_id
    assert session.base_cache is not untouched[0]
    baked = session.base_cache.of_graph(session.step.graph.id)
    for layer, pair in enumerate(session.kv_nodes):
        assert tuple(baked[node] for node in pair) == other.slabs(layer)
    kept = {node: s for node, s in untouched[1].items() if node not in {*sum(session.kv_nodes, ())}}
    assert {node: baked[node] for node in kept} == kept  # weights and first data are the same storages
    same_bits(next_logits(place, model, session, other), expected)
    assert place.checksum(cache) == old


def check_rebinding_both_or_none() -> None:
    """The second session can't take the cache: the first keeps its own binding too."""
    place, model, slot, session, cache = ready()
    step = next(s for rows, s in slot.sessions.items() if rows > 1)
    other = place.cache(model)
    sessions = list(slot.sessions.values())
    assert sessions == [step, session]
    # the second one lacks a slab, so staging fails there
    node = session.kv_nodes[1][1]
    partial = StorageCache()
    for each, storage in session.base_cache.of_graph(session.step.graph.id).items():
        if each != node:
            partial.bind(session.step.graph.id, session.optimized.nodes[each], storage)
    session.base_cache = partial
    before = state(step)
    done = refresh_decode_session(
        slot, structure_of(model, cache, WritePath.DEVICE_OFFSET, place.places[0]), other
    )
    assert done.outcome is Outcome.DROPPED
    assert done.reason == RebindRefusal(RefusalReason.UNBAKED_SLOT, 1, 1)
    assert state(step) == before
    assert not slot.sessions
    same_bits(HELD(model, [3], other, place, slot), place.oracle(model, [3], rewound_copy(place, other)))


def rewound_copy(place: World, cache: KvCache) -> KvCache:
    copy = place.copy(cache)
    copy.truncate_to(cache.length - 1)
    return copy


def test_two_sessions_are_rebound_together_or_not_at_all() -> None:
    check_rebinding_both_or_none()


def test_outcomes() -> None:
    place, model, slot, session, cache = ready()
    structure = structure_of(model, cache, WritePath.DEVICE_OFFSET, place.places[0])
    assert refresh_decode_session(DecodeSlot(), structure, cache).outcome is Outcome.ABSENT
    epoch = slot.epoch
    assert refresh_decode_session(slot, structure, cache).outcome is Outcome.KEPT
    assert slot.epoch == epoch
    other = place.cache(model)
    assert refresh_decode_session(slot, structure, other).outcome is Outcome.REBOUND
    assert slot.epoch == epoch + 1
    assert {s.alloc_id for s in slot.sessions.values()} == {other.alloc_id}
    assert slot.session is session
    dropped = refresh_decode_session(slot, structure, Source(cache, location=lambda place: None))
    assert dropped.outcome is Outcome.DROPPED
    assert dropped.reason == RebindRefusal(RefusalReason.RESIDENCY_UNKNOWN)
    assert not slot.sessions
    HELD(model, [1], cache, place, slot)
    stale = refresh_decode_session(slot, replace(structure, max_seq_len=9), cache)
    assert (stale.outcome, stale.reason) == (Outcome.DROPPED, PlanValidity.stale("max_seq_len"))
    assert slot.statistics.drops == ("residency unknown", "stale: max_seq_len")
    assert refresh_decode_session(slot, structure, cache).outcome is Outcome.ABSENT


def check_a_refused_offer_is_replanned(name: str, where: str) -> None:
    """Through a slot: the sessions go, with the reason, and the next step is right all the same."""
    place, model, slot, _, cache = ready(where)
    changes, reason, _, _ = OFFERS[name]
    structure = structure_of(model, cache, WritePath.DEVICE_OFFSET, place.places[0])
    done = refresh_decode_session(slot, structure, Source(place.cache(model), **changes))
    assert done.outcome is Outcome.DROPPED
    assert isinstance(done.reason, RebindRefusal)
    assert done.reason.reason is reason
    expected = place.oracle(model, [3], cache)
    same_bits(HELD(model, [3], cache, place, slot), expected)


@pytest.mark.parametrize("name", OFFERS)
@by_where
def test_a_refusal_costs_the_session_and_nothing_else(name: str, where: str) -> None:
    check_a_refused_offer_is_replanned(name, where)


class Watched(dict[int, Any]):
    """Sessions that note when they go."""

    events: list[str]

    def clear(self) -> None:
        self.events.append("sessions" if self.slot.capture is None else "sessions, the capture still there")
        super().clear()

    slot: DecodeSlot


def check_reader_before_owner() -> None:
    place, model, slot, _, cache = ready("delayed")
    CAPTURED(model, [1], cache, place, slot)
    assert slot.capture is not None
    watched = Watched(slot.sessions)
    watched.events, watched.slot = [], slot
    slot.sessions = watched
    invalidate_decode_pair(slot, "because")
    assert watched.events == ["sessions"]
    assert slot.capture is None
    assert slot.capture_refusal is None
    assert slot.session is None
    assert slot.statistics.drops == ("because",)


def test_the_capture_goes_before_the_sessions() -> None:
    check_reader_before_owner()


def check_capture_goes_before_the_commit(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    place, model, slot, _session, cache = ready(where)
    CAPTURED(model, [1], cache, place, slot)
    assert slot.capture is not None
    seen = []
    commit = HeldSession.commit_kv

    def watching(self: HeldSession, rebound: Any) -> None:
        seen.append(slot.capture)
        commit(self, rebound)

    with monkeypatch.context() as patch:
        patch.setattr(HeldSession, "commit_kv", watching)
        other = place.cache(model)
        place.fill(other, 3)
        expected = place.oracle(model, [2], other)
        same_bits(HELD(model, [2], other, place, slot), expected)
    assert seen == [None, None]
    assert slot.capture is None


@by_frail
def test_a_capture_is_retired_before_its_slabs_are_exchanged(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_capture_goes_before_the_commit(monkeypatch, where)


def check_stale_capture(where: str) -> None:
    """Re-bound behind the capture's back, it refuses before anything is written."""
    place, model, slot, session, cache = ready(where)
    CAPTURED(model, [1], cache, place, slot)
    capture = slot.capture
    assert capture is not None
    other = place.cache(model)
    place.fill(other, 6)
    assert session.rebind_kv(other) is None
    sums = place.checksum(cache), place.checksum(other)
    data = token_data(session.step, model, np.array([9]), cache.length)
    with pytest.raises(StaleCapture) as caught:
        capture.replay_token(data)
    assert (caught.value.recorded, caught.value.current) == (capture.epoch, session.epoch)
    assert (place.checksum(cache), place.checksum(other)) == sums


@by_frail
def test_a_capture_of_an_older_epoch_is_stale(where: str) -> None:
    check_stale_capture(where)


@by_frail
def test_a_slot_whose_session_was_rebound_by_hand_captures_anew(where: str) -> None:
    place, model, slot, _session, cache = ready(where)
    CAPTURED(model, [1], cache, place, slot)
    first = slot.capture
    other = place.cache(model)
    place.fill(other, 6)
    for each in slot.sessions.values():
        assert each.rebind_kv(other) is None
    for token in (2, 3):
        expected = place.oracle(model, [token], other)
        same_bits(CAPTURED(model, [token], other, place, slot), expected)
    assert slot.capture is not first
    assert slot.statistics.captured == 3


@by_frail
def test_epochs(where: str) -> None:
    place, model, slot, session, _cache = ready(where)
    assert session.epoch == 0
    epochs = []
    for turn in range(1, 4):
        other = place.cache(model)
        CAPTURED(model, [turn], other, place, slot)
        assert session.epoch == turn
        assert slot.capture is not None
        assert slot.capture.epoch == turn
        epochs.append(slot.epoch)
    assert epochs == sorted(set(epochs))


def test_a_cache_of_another_model_of_the_same_geometry_is_no_allocation_change() -> None:
    place, _model, _slot, session, _cache = ready()
    other = place.cache(micro_phi())
    structure = structure_of(micro_phi(), other, WritePath.DEVICE_OFFSET, place.places[0])
    assert session.validity(structure, other.alloc_id) == PlanValidity.stale("shape_key")


@by_frail
def test_the_old_slabs_may_go_after_a_rebind(where: str) -> None:
    """Freed memory reads as NaN on these devices: nothing of the session may still point there."""
    place, model, slot, _, cache = ready(where)
    CAPTURED(model, [1], cache, place, slot)
    other = place.cache(model)
    place.fill(other, 4)
    CAPTURED(model, [1], other, place, slot)
    del cache
    for token in range(4):
        expected = place.oracle(model, [token], other)
        assert np.isfinite(expected).all()
        same_bits(CAPTURED(model, [token], other, place, slot), expected)


@by_frail
def test_freed_memory_is_poisoned_there(where: str) -> None:
    """Without which the test above shows nothing."""
    storage = world(where).device().allocate(4, DType.F32, enc.F32)
    handle = raw(storage.parts[0].data)
    owner = handle.base
    start = handle.ctypes.data - owner.ctypes.data
    memory = owner.view(np.uint8)[start : start + 16].view(np.float32)
    assert memory.tolist() == [0.0] * 4
    del storage, handle
    assert np.isnan(memory).all()
