"""The registry, weight sets, and their stores."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from ostinato.device.encoded import EncodedTensor
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import DeviceAlreadyRegistered, NoDevice, WeightLayoutConflict
from ostinato.ir import Location, PackRecipe
from ostinato.ir import encoding as enc
from ostinato.runtime.registry import Registry
from ostinato.runtime.weights import WeightSet, WeightStore
from sabotage import goes_red, nothing


def tensor(name: str, rows: int = 2) -> EncodedTensor:
    values = np.arange(rows * 4, dtype=np.float32)
    return EncodedTensor(name, (rows, 4), enc.F32, values.view(np.uint8).reshape(rows, 16))


def weights() -> WeightSet:
    return WeightSet({name: tensor(name) for name in ("a", "b")})


def test_the_generation_grows_with_every_change() -> None:
    devices = Registry()
    seen = [devices.generation]
    for ordinal in (0, 5):
        devices.register(ReferenceDevice(ordinal))
        seen.append(devices.generation)
    with pytest.raises(DeviceAlreadyRegistered, match="reference:5"):
        devices.register(ReferenceDevice(5))
    assert devices.generation == seen[-1]
    before = devices.snapshot()
    devices.unregister(Location("reference", 5))
    seen.append(devices.generation)
    assert seen == sorted(set(seen))
    assert Location("reference", 5) in before.traits  # a snapshot is a value
    with pytest.raises(NoDevice, match=r"reference:5.*reference:0"):
        devices.device(Location("reference", 5))
    with pytest.raises(NoDevice):
        devices.unregister(Location("reference", 5))


def test_weight_set_ids_are_never_reused() -> None:
    ids = set()
    for _ in range(50):
        ids.add(weights().id)
        gc.collect(0)
    assert len(ids) == 50


def test_a_weight_is_packed_once_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    device, packed = ReferenceDevice(), []
    pack = device.pack

    def counting(recipe: PackRecipe, tensors: list[EncodedTensor]) -> object:
        packed.append(recipe)
        return pack(recipe, tensors)

    monkeypatch.setattr(device, "pack", counting)
    store = weights().store_on(device)
    results: list[object] = []
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait(10)
        results.append(store.get(PackRecipe(("a", "b"), "dense")))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(packed) == 1
    assert len({id(result) for result in results}) == 1
    assert store.nbytes == 64


def test_a_second_layout_of_a_weight_is_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        store = weights().store_on(ReferenceDevice())
        first = store.get(PackRecipe(("a",), "dense"))
        for other in (PackRecipe(("a", "b"), "dense"), PackRecipe(("a",), "dense", "interleaved")):
            with pytest.raises(WeightLayoutConflict, match="'a'"):
                store.get(other)
        assert store.get(PackRecipe(("a",), "dense")) is first
        store.get(PackRecipe(("b",), "dense"))  # the refused recipe left no trace of b

    goes_red(monkeypatch, WeightStore, "check_unshared", nothing, check)


def test_stores_are_one_a_device_and_a_new_device_starts_empty() -> None:
    one, device = weights(), ReferenceDevice()
    assert one.store_on(device) is one.store_on(device)
    assert one.store_on(ReferenceDevice(1)) is not one.store_on(device)
    stale = one.store_on(device)
    assert one.store_on(ReferenceDevice()) is not stale
    assert weights().store_on(device) is not one.store_on(device)
