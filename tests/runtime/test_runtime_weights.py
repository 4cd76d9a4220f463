"""The registry, weight sets, and their stores."""

from __future__ import annotations

import contextlib
import gc
import mmap
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.kv_cache import KvCache
from ostinato.device.encoded import EncodedTensor
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import DeviceAlreadyRegistered, NoDevice, WeightLayoutConflict
from ostinato.formats import pages
from ostinato.ir import Location, PackRecipe
from ostinato.ir import encoding as enc
from ostinato.models.contract import Model
from ostinato.runtime import weights as weights_module
from ostinato.runtime.context import InferenceContext
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
    def check() -> None:
        device, packed = ReferenceDevice(), []
        store = weights().store_on(device)
        pack = device.pack

        def counting(recipe: PackRecipe, tensors: list[EncodedTensor]) -> object:
            packed.append(recipe)
            time.sleep(0.05)  # long enough for everyone else to ask
            return pack(recipe, tensors)

        results: list[object] = []
        start = threading.Barrier(8)

        def ask() -> None:
            start.wait(10)
            results.append(store.get(PackRecipe(("a", "b"), "dense")))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        with monkeypatch.context() as patch:
            patch.setattr(device, "pack", counting)
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
        assert len(packed) == 1
        assert len(results) == 8
        assert len({id(result) for result in results}) == 1
        assert store.nbytes == 64

    class NoLock:
        Lock = contextlib.nullcontext

    goes_red(monkeypatch, weights_module, "threading", NoLock, check)


def test_the_file_s_pages_are_let_go_once_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w"
    path.write_bytes(bytes(1 << 20))
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    raw = np.frombuffer(mapping, np.uint8).reshape(256, 4096)
    released = []
    monkeypatch.setattr(weights_module, "release", lambda array: released.append(pages.release(array)))
    device = ReferenceDevice()
    store = WeightSet({"w": EncodedTensor("w", (256, 1024), enc.F32, raw)}).store_on(device)
    for _ in range(2):
        store.get(PackRecipe(("w",), "dense"))
    assert released == [1 << 20] or pages._DONTNEED is None


def test_a_second_layout_of_a_weight_is_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        device = ReferenceDevice()
        store = weights().store_on(device)
        first = store.get(PackRecipe(("a",), "dense"))
        for other in (PackRecipe(("a", "b"), "dense"), PackRecipe(("a",), "rows")):
            with pytest.raises(WeightLayoutConflict, match="'a'"):
                store.get(other)
        assert store.get(PackRecipe(("a",), "dense")) is first
        store.get(PackRecipe(("b",), "dense"))  # the refused recipe left no trace of b

    goes_red(monkeypatch, WeightStore, "check_unshared", nothing, check)


def test_stores_are_one_a_device_and_a_new_device_starts_empty() -> None:
    one, device, second, same_place = weights(), ReferenceDevice(), ReferenceDevice(1), ReferenceDevice()
    store = one.store_on(device)
    assert one.store_on(second) is not store
    assert one.store_on(same_place) is not store
    assert weights().store_on(device) is not store
    assert one.store_on(device) is store  # whoever else asked meanwhile


def test_two_registries_don_t_pack_in_turns(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a reference:0 of its own; a step on one must not throw away what the other packed."""
    contexts = []
    for _ in range(2):
        devices = Registry()
        devices.register(ReferenceDevice())
        contexts.append(InferenceContext("reference", devices))
    model = replace(tiny, weights=WeightSet(tiny.weights))
    packs = []
    pack = ReferenceDevice.pack
    monkeypatch.setattr(ReferenceDevice, "pack", lambda *args: (packs.append(1), pack(*args))[1])
    counts = []
    for turn in range(4):
        context = contexts[turn % 2]
        before = len(packs)
        forward_with_kv_context(model, [1], KvCache.allocate(model, context, 8), context)
        counts.append(len(packs) - before)
    assert counts[0] == counts[1] > 0
    assert counts[2:] == [0, 0]


def test_a_device_that_is_gone_takes_its_packed_weights_along() -> None:
    devices, one = Registry(), weights()
    devices.register(ReferenceDevice())
    store = one.store_on(devices.device(Location("reference")))
    packed = weakref.ref(store.get(PackRecipe(("a",), "dense")).parts[0].data)
    devices.unregister(Location("reference"))
    with pytest.raises(NoDevice, match="reference:0"):
        store.get(PackRecipe(("b",), "dense"))
    del store
    gc.collect()
    assert packed() is None


def test_a_weight_set_that_is_gone_takes_its_packed_weights_along() -> None:
    device, one = ReferenceDevice(), weights()
    packed = weakref.ref(one.store_on(device).get(PackRecipe(("a",), "dense")).parts[0].data)
    gc.disable()  # at once, without a collection
    try:
        del one
        assert packed() is None
    finally:
        gc.enable()
