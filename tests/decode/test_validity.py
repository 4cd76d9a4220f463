"""Whether a held plan may serve a request: each field of the list alone, and what the symbols carry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from decode.sessionkit import (
    ALONE,
    FRAIL,
    HELD,
    LLAMA_CONFIG,
    MODELS,
    World,
    micro_llama,
    model_of,
    same_bits,
    tokens_of,
    world,
)  # fmt: skip
from ostinato.decode.data import token_data
from ostinato.decode.session import DecodeSession
from ostinato.decode.shelf import structure_of
from ostinato.decode.slot import DecodeSlot, Outcome, refresh_decode_session
from ostinato.decode.step import step_env
from ostinato.decode.validity import PlanStructure, PlanValidity, Verdict
from ostinato.device.traits import WritePath
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import DeviceMismatch
from ostinato.ir import Location
from ostinato.ir import encoding as enc
from ostinato.models.contract import LayerKv, Model
from ostinato.models.llama import LLAMA
from ostinato.models.rope import RopeSpec

pytestmark = pytest.mark.usefixtures("one_thread")


def held(place: World, model: Model, path: WritePath | None = None) -> tuple[DecodeSlot, DecodeSession, Any]:
    """A slot with both sessions over a cache of six positions."""
    cache, slot = place.cache(model), DecodeSlot()
    HELD(model, tokens_of(5), cache, place, slot, write_path=path)
    HELD(model, [5], cache, place, slot, write_path=path)
    assert slot.session is not None
    return slot, slot.session, cache


def request(session: DecodeSession) -> dict[str, Any]:
    """The arguments that the session is valid for."""
    structure = session.structure
    return {
        "seq": 1,
        "max_seq_len": structure.max_seq_len,
        "n_layers": structure.n_layers,
        "cache_dtype": structure.cache_dtype,
        "shape_key": structure.shape_key,
        "alloc_id": session.alloc_id,
        "kv_geometry": structure.kv_geometry,
        "location": structure.locations,
        "write_path": structure.write_path,
    }


def other_key(how: str, mine: Model) -> Any:
    """The shape key of a model that differs in one thing; weights alike except in the first case."""
    config = mine.config
    assert isinstance(config, type(LLAMA_CONFIG))
    changed = {
        "rope base": replace(config, rope=replace(config.rope, base=5e5)),
        "rope scaling": replace(config, rope=replace(config.rope, linear=2.0)),
        "rope factors": replace(config, rope=replace(config.rope, factors=(1.0, 2.0))),
        "rope width": replace(config, rope=RopeSpec(config.rope.base, 2)),
        "eps": replace(config, norm_eps=1e-6),
        "heads": replace(config, heads=8),
        "ffn": replace(config, ffn_dim=32),
        "window": replace(config, window=4),
    }
    if how == "weights":
        return model_of(LLAMA, config, seed=0).shape_key  # the same bytes, and another instance
    if how == "family":
        return replace(mine, family=replace(mine.family, name="other")).shape_key
    return replace(mine, config=changed[how]).shape_key


KEYS = (
    "weights", "family", "rope base", "rope scaling", "rope factors", "rope width", "eps", "heads", "ffn",
    "window",
)  # fmt: skip
OTHERS: dict[str, Callable[[DecodeSession], Any]] = {
    "seq": lambda session: 2,
    "max_seq_len": lambda session: 63,
    "n_layers": lambda session: 3,
    "cache_dtype": lambda session: enc.F16,
    "kv_geometry": lambda session: (LayerKv(2, 4, 4, 7), session.structure.kv_geometry[1]),
    "location": lambda session: (*session.structure.locations[:-1], Location("reference", 1)),
    "write_path": lambda session: WritePath.SYMBOLIC,
}
NAMES = {"location": "locations"}


def check_field(name: str, other: Callable[[DecodeSession], Any]) -> None:
    """A request that differs in this field alone is stale for that reason, whatever the allocation."""
    _, session, _ = held(world("reference"), micro_llama())
    right = request(session)
    assert session.validity_for(**right) is PlanValidity.VALID
    assert session.is_valid_for(**right)
    wrong = {**right, name: other(session)}
    for alloc_id in (session.alloc_id, session.alloc_id + 1000):
        verdict = session.validity_for(**{**wrong, "alloc_id": alloc_id})
        assert verdict == PlanValidity(Verdict.STALE, NAMES.get(name, name))
        assert not session.is_valid_for(**{**wrong, "alloc_id": alloc_id})
    assert session.validity_for(**right) is PlanValidity.VALID


@pytest.mark.parametrize("name", OTHERS)
def test_each_field_alone(name: str) -> None:
    check_field(name, OTHERS[name])


@pytest.mark.parametrize("how", KEYS)
def test_each_part_of_the_shape_key_alone(how: str) -> None:
    check_field("shape_key", lambda session: other_key(how, micro_llama()))


@pytest.mark.parametrize("field", ["kv_heads", "k_dim", "v_dim", "window"])
def test_each_part_of_the_geometry_alone(field: str) -> None:
    def other(session: DecodeSession) -> Any:
        first, second = session.structure.kv_geometry
        return (first, replace(second, **{field: 3}))

    check_field("kv_geometry", other)


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("place", [Location("reference", 1), Location("cpu", 0)], ids=str)
def test_each_location_alone(at: int, place: Location) -> None:
    def other(session: DecodeSession) -> Any:
        places = list(session.structure.locations)
        assert len(places) == 5  # the context's device, then K and V of two layers
        places[at] = place
        return tuple(places)

    check_field("location", other)


def test_the_list_is_the_whole_structure() -> None:
    _, session, _ = held(world("reference"), micro_llama())
    names = {NAMES.get(name, name) for name in request(session)} - {"seq", "alloc_id"}
    assert names == {field.name for field in fields(PlanStructure)}
    assert {NAMES.get(name, name) for name in OTHERS} | {"shape_key"} == names | {"seq"}


def check_allocation() -> None:
    _, session, _ = held(world("reference"), micro_llama())
    right = request(session)
    changed = {**right, "alloc_id": session.alloc_id + 1000}
    assert session.validity_for(**changed) is PlanValidity.ALLOCATION_CHANGED
    assert not session.is_valid_for(**changed)


def test_another_allocation_alone() -> None:
    check_allocation()


def test_is_valid_for_is_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no second list of comparisons behind it."""
    _, session, _ = held(world("reference"), micro_llama())
    right = request(session)
    for verdict in (PlanValidity.VALID, PlanValidity.ALLOCATION_CHANGED, PlanValidity.stale("anything")):
        monkeypatch.setattr(DecodeSession, "validity_for", lambda *a, verdict=verdict, **k: verdict)
        assert session.is_valid_for(**right) is (verdict is PlanValidity.VALID)
        assert session.is_valid_for(1, 2, 3) is (verdict is PlanValidity.VALID)


def test_verdicts_read_well() -> None:
    assert str(PlanValidity.stale("seq")) == "stale: seq"
    assert str(PlanValidity.ALLOCATION_CHANGED) == "allocation changed"
    assert [v.value for v in Verdict] == ["valid", "allocation changed", "stale"]


def check_other_models_never_share(how: str, where: str) -> None:
    """Through the entry point: two models of one geometry in one slot give each its own logits."""
    place, mine = world(where), micro_llama()
    config = mine.config
    assert isinstance(config, type(LLAMA_CONFIG))
    if how == "weights":
        theirs = micro_llama(1)
    elif how == "family":
        theirs = MODELS["masked"]()
    elif how == "rope":
        theirs = replace(mine, config=replace(config, rope=replace(config.rope, base=50.0)))
    elif how == "eps":
        theirs = replace(mine, config=replace(config, norm_eps=0.5))
    slot = DecodeSlot()
    cache = place.cache(mine)
    HELD(mine, tokens_of(4), cache, place, slot)
    for turn, model in enumerate([mine, theirs, mine, theirs, theirs]):
        expected = place.oracle(model, [turn], cache)
        if how != "family":  # that one computes the same another way
            other = place.oracle(theirs if model is mine else mine, [turn], cache)
            assert np.abs(expected - other).max() > 1e-4
        same_bits(HELD(model, [turn], cache, place, slot), expected)
    assert all("shape_key" in reason for reason in slot.statistics.drops)
    assert len(slot.statistics.drops) == 3


@pytest.mark.parametrize("how", ["weights", "family", "rope", "eps"])
@pytest.mark.parametrize("where", ["reference", "cpu"])
def test_models_of_identical_geometry_never_share_a_plan(how: str, where: str) -> None:
    check_other_models_never_share(how, where)


@pytest.mark.parametrize("where", ["split", "two cpus"])
def test_contexts_on_different_devices_never_share_a_plan(where: str) -> None:
    """What nothing ties to a device runs on the context's own: that is part of the plan."""
    from ostinato.runtime.context import InferenceContext

    place, model, slot = world(where), micro_llama(), DecodeSlot()
    first, second = place.places
    from ostinato.decode.forward import forward_with_kv_context_persistent as run
    from ostinato.decode.kv_cache import KvCache

    contexts = [InferenceContext(at, place.devices) for at in (first, second)]
    cache = KvCache.allocate(model, contexts[0], 64)
    for turn, tokens in enumerate(([1, 2, 3], [4], [5], [6, 7], [8])):
        context = contexts[turn % 2]
        expected = place.oracle(model, tokens, cache)
        same_bits(run(model, tokens, cache, context, slot), expected)
        assert {session.location for session in slot.sessions.values()} == {context.location}
    assert all("locations" in reason for reason in slot.statistics.drops)


def check_registries_are_told_apart(where: str) -> None:
    """Each request runs on its own context's devices, and sees their topology, though all have one name."""
    slot, model = DecodeSlot(), micro_llama()
    places = [world(where), world(where)]
    caches = [place.cache(model) for place in places]
    for turn in range(4):
        place, cache = places[turn % 2], caches[turn % 2]
        if turn == 3:
            place.devices.register(ReferenceDevice(7))
        expected = place.oracle(model, [turn], cache)
        kernels = [p.device().kernels for p in places]
        same_bits(HELD(model, [turn], cache, place, slot), expected)
        ran = [p.device().kernels - before for p, before in zip(places, kernels, strict=True)]
        assert ran[turn % 2]
        assert not ran[1 - turn % 2]
    assert len(slot.statistics.drops) == 3


@pytest.mark.parametrize("where", FRAIL)
def test_registries_are_told_apart(where: str) -> None:
    check_registries_are_told_apart(where)


@pytest.mark.parametrize("where", ALONE)
def test_truncation_keeps_the_plan_and_clear_and_set_layer_do_not(where: str) -> None:
    place, model = world(where), micro_llama()
    slot, session, cache = held(place, model)
    structure = structure_of(model, cache, WritePath.DEVICE_OFFSET, place.places[0])
    cache.truncate_to(3)
    assert session.validity(structure, cache.alloc_id) is PlanValidity.VALID
    assert refresh_decode_session(slot, structure, cache).outcome is Outcome.KEPT
    same_bits(HELD(model, [7], cache, place, slot), place.oracle(model, [7], rewound(cache, 1)))
    for change in (cache.clear, lambda: cache.set_layer(1, *cache.slabs(1))):
        change()
        assert session.validity(structure, cache.alloc_id) is PlanValidity.ALLOCATION_CHANGED
        expected = place.oracle(model, tokens_of(3), cache)
        same_bits(HELD(model, tokens_of(3), cache, place, slot), expected)
        assert session.validity(structure, cache.alloc_id) is PlanValidity.VALID
    assert slot.session is session
    assert slot.statistics.drops == ()


def rewound(cache: Any, count: int) -> Any:
    """The cache before its last `count` positions, without changing it."""
    from ostinato.decode.kv_cache import KvCache

    layers = range(len(cache.geometry))
    same = KvCache(cache.geometry, cache.capacity, cache.dtype, [cache.slabs(i) for i in layers])
    same.advance(cache.length - count)
    return same


@pytest.mark.parametrize("where", ALONE)
def test_after_a_rebind_the_new_allocation_is_valid_and_the_old_one_changed(where: str) -> None:
    place, model = world(where), micro_llama()
    _, session, cache = held(place, model)
    other = place.cache(model)
    structure = structure_of(model, cache, WritePath.DEVICE_OFFSET, place.places[0])
    assert session.validity(structure, other.alloc_id) is PlanValidity.ALLOCATION_CHANGED
    assert session.rebind_kv(other) is None
    assert session.validity(structure, other.alloc_id) is PlanValidity.VALID
    assert session.validity(structure, cache.alloc_id) is PlanValidity.ALLOCATION_CHANGED


@pytest.mark.parametrize("where", ["split", "two cpus"])
def test_another_device_is_refused(where: str) -> None:
    place, model = world(where), micro_llama()
    _, session, cache = held(place, model)
    data = token_data(session.step, model, np.array([1]), cache.length)
    before = place.checksum(cache)
    with pytest.raises(DeviceMismatch):
        session.realize_token(place.places[1], data, session.per_token_sym_env(cache.length))
    assert place.checksum(cache) == before


# What carries the position: a binding that is wrong by one changes the logits where it is live, and nothing
# where it is dead. A symbol that is dead on one path is load-bearing on the other.

LIVE = {
    (WritePath.DEVICE_OFFSET, "cached_len"): False,
    (WritePath.DEVICE_OFFSET, "attended_len"): False,
    (WritePath.DEVICE_OFFSET, "offset"): True,
    (WritePath.SYMBOLIC, "cached_len"): True,
    (WritePath.SYMBOLIC, "attended_len"): True,
}


def wrong_by_one(place: World, model: Model, path: WritePath, what: str) -> bool:
    """Whether the logits change when `what` is bound to one less than it should be."""
    _, session, cache = held(place, model, path)
    length = cache.length
    data = token_data(session.step, model, np.array([9]), length)
    env = session.per_token_sym_env(length)
    assert env[session.attended_len_sym] == env[session.cached_len_sym] + 1 == length + 1
    right = session.realize_token(session.location, data, env)
    if what == "offset":
        assert data.offset is not None
        data = replace(data, offset=data.offset - 1)
    else:
        symbol = session.cached_len_sym if what == "cached_len" else session.attended_len_sym
        values = {**step_env(length, 1, 1)}
        values[symbol] -= 1
        env = type(env)(values)
    wrong = session.realize_token(session.location, data, env)
    return right.tobytes() != wrong.tobytes()


@pytest.mark.parametrize("where", ALONE)
@pytest.mark.parametrize("name", ["llama", "phi"])
@pytest.mark.parametrize(("path", "what"), LIVE, ids=lambda value: getattr(value, "value", value))
def test_what_carries_the_position(where: str, name: str, path: WritePath, what: str) -> None:
    assert wrong_by_one(world(where), MODELS[name](), path, what) is LIVE[path, what]


@pytest.mark.parametrize("where", ALONE)
@pytest.mark.parametrize("path", WritePath)
def test_the_offset_node(where: str, path: WritePath) -> None:
    _, session, _ = held(world(where), micro_llama(), path)
    if path is WritePath.SYMBOLIC:
        assert session.offset_node is None
    else:
        assert session.offset_node in session.optimized.consts
