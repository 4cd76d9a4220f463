"""A request about the very things that the last one was about is not looked at again; any other one is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from decode import test_validity as validities
from decode.sessionkit import CAPTURED, HELD, micro_llama, micro_windowed, same_bits, world
from ostinato.decode import request as request_module
from ostinato.decode.proven import ProvenRequest
from ostinato.decode.slot import DecodeSlot
from ostinato.device.traits import WritePath
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import CacheMismatch, DeviceMismatch
from ostinato.ir import Location
from ostinato.ir import encoding as enc
from ostinato.models.contract import Family
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry
from ostinato.runtime.weights import WeightSet
from sabotage import NOTICED, goes_red

pytestmark = pytest.mark.usefixtures("one_thread")


class Case:
    """What a proof is about; each change below makes a difference in one field alone."""

    def __init__(self) -> None:
        self.place = world("delayed")
        self.model = micro_llama()
        self.cache = self.place.cache(self.model)
        self.context = self.place.context
        self.path: WritePath | None = None
        slot = DecodeSlot()
        HELD(self.model, [1], self.cache, self.place, slot)
        assert slot.proven is not None
        self.proven: ProvenRequest = slot.proven

    def covered(self) -> bool:
        return self.proven.covers(self.model, self.cache, self.context, self.path)


def other_model(case: Case, **changes: Any) -> None:
    case.model = replace(case.model, **changes)


def other_family(case: Case) -> None:
    family: Family = replace(case.model.family)
    other_model(case, family=family)


def other_slabs(case: Case) -> None:
    k, v = case.cache.slabs(0)
    case.cache.set_layer(0, k, v)


def other_place(case: Case) -> None:
    case.place.devices.register(ReferenceDevice(7))
    generation = case.place.devices.generation
    case.context = InferenceContext(Location("reference", 7), case.place.devices)
    case.proven = replace(case.proven, generation=generation)


def other_registry(case: Case) -> None:
    devices = Registry()
    devices.register(case.place.device())
    assert devices.generation == case.proven.generation
    case.context.devices = devices


CHANGES: dict[str, Callable[[Case], object]] = {
    "family": other_family,
    "config": lambda case: other_model(case, config=replace(case.model.config)),  # type: ignore[type-var]
    "weight_set": lambda case: other_model(case, weights=WeightSet(dict(case.model.weights))),
    "geometry": lambda case: setattr(case.cache, "geometry", (*case.cache.geometry,)[:1]),
    "capacity": lambda case: setattr(case.cache, "capacity", 63),
    "dtype": lambda case: setattr(case.cache, "dtype", enc.F16),
    "alloc_id": lambda case: case.cache.clear(),
    "alloc_id, by other slabs": other_slabs,
    "home": other_place,
    "devices": other_registry,
    "generation": lambda case: case.place.devices.register(ReferenceDevice(7)),
    "write_path": lambda case: setattr(case, "path", WritePath.SYMBOLIC),
}


@pytest.mark.parametrize("field", CHANGES)
def test_each_field_of_the_proof(field: str) -> None:
    case = Case()
    assert case.covered()
    CHANGES[field](case)
    assert not case.covered()


def test_every_field_is_changed_above() -> None:
    fields = {*ProvenRequest.__dataclass_fields__} - {"structure"}  # what follows from the others
    assert {name.split(",")[0] for name in CHANGES} == fields


def test_a_cache_that_grows_stays_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and cuts cost no second look."""
    looks = []
    look = request_module.check_cache
    monkeypatch.setattr(request_module, "check_cache", lambda *a: (looks.append(a), look(*a)))
    place, model, slot = world("delayed"), micro_llama(), DecodeSlot()
    cache = place.cache(model)
    for entry in (HELD, CAPTURED):
        for step in ([1, 2, 3], [4], [5]):
            entry(model, step, cache, place, slot)
        cache.truncate_to(1)
    assert len(looks) == 1


def check_a_cache_of_another_geometry() -> None:
    place, model, slot = world("delayed"), micro_llama(), DecodeSlot()
    cache, other = place.cache(model), place.cache(micro_windowed())
    HELD(model, [1], cache, place, slot)
    with pytest.raises(CacheMismatch):
        HELD(model, [1], other, place, slot)
    assert other.length == 0


def check_the_write_path() -> None:
    """Asked for another path in between, a slot takes it, and comes back."""
    place, model, slot = world("delayed"), micro_llama(), DecodeSlot()
    cache = place.cache(model)
    for path in (None, WritePath.SYMBOLIC, None):
        expected = place.oracle(model, [1], cache, path=path)
        same_bits(HELD(model, [1], cache, place, slot, write_path=path), expected)
        assert slot.session is not None
        assert slot.session.structure.write_path is (path or WritePath.DEVICE_OFFSET)


BLIND: dict[str, Callable[[], object]] = {
    "another geometry": check_a_cache_of_another_geometry,
    "another path": check_the_write_path,
    "other weights": lambda: validities.check_other_models_never_share("weights", "reference"),
    "another family": lambda: validities.check_other_models_never_share("family", "reference"),
    "another eps": lambda: validities.check_other_models_never_share("eps", "reference"),
    "another device": lambda: validities.test_contexts_on_different_devices_never_share_a_plan("split"),
}


@pytest.mark.parametrize("name", BLIND)
def test_sabotage_a_proof_that_covers_everything(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch, ProvenRequest, "covers", lambda *_: True, BLIND[name],
        expect=(*NOTICED, DeviceMismatch),
    )  # fmt: skip
