"""The weights of one loaded model, and their packed copies on each device."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator, Mapping
from weakref import WeakKeyDictionary

from ostinato.device.contract import Device
from ostinato.device.encoded import EncodedTensor
from ostinato.device.storage import Storage
from ostinato.errors.device import NoDevice, WeightLayoutConflict
from ostinato.formats.pages import release
from ostinato.ir.recipe import PackRecipe

_weight_set_ids = itertools.count(1)


class WeightSet(Mapping[str, EncodedTensor]):
    """Encoded tensors by canonical name. `id` is minted here and never reused, not even after collection:
    two loads of one file are two weight sets, and a plan made for one is no plan for the other."""

    def __init__(self, tensors: Mapping[str, EncodedTensor]) -> None:
        self.id = next(_weight_set_ids)
        self._tensors = dict(tensors)
        # By the device itself: two registries may each have their own reference:0. Weakly: a device that is
        # gone takes its packed weights along.
        self._stores: WeakKeyDictionary[Device, WeightStore] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> EncodedTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def store_on(self, device: Device) -> WeightStore:
        """The one store of this weight set on `device`."""
        with self._lock:
            store = self._stores.get(device)
            if store is None:
                store = self._stores[device] = WeightStore(self._tensors, device)
            return store


class WeightStore:
    """Owns the only copy of each packed weight of one weight set on one device; packs on first use.

    It keeps neither alive: a device that is unregistered and no longer held takes its store along.
    """

    def __init__(self, weights: Mapping[str, EncodedTensor], device: Device) -> None:
        self._device = weakref.ref(device)
        self._location = device.location
        self._weights = weights
        self._packed: dict[PackRecipe, Storage] = {}
        self._recipes: dict[str, PackRecipe] = {}
        self._lock = threading.Lock()

    def get(self, recipe: PackRecipe) -> Storage:
        """The packed weight. Raises what packing raises, WeightLayoutConflict when a tensor is already packed
        another way, NoDevice when the device is gone."""
        storage = self._packed.get(recipe)
        if storage is not None:
            return storage
        with self._lock:
            if recipe not in self._packed:
                self.check_unshared(recipe)
                device = self._device()
                if device is None:
                    raise NoDevice(str(self._location), ())
                tensors = [self._weights[name] for name in recipe.names]
                self._packed[recipe] = device.pack(recipe, tensors)
                self._recipes.update(dict.fromkeys(recipe.names, recipe))
                for tensor in tensors:
                    release(tensor.raw)  # the packed copy is the only one that is read from here on
            return self._packed[recipe]

    def check_unshared(self, recipe: PackRecipe) -> None:
        """Raises WeightLayoutConflict when one of the recipe's tensors is packed by another recipe."""
        for name in recipe.names:
            if name in self._recipes:
                raise WeightLayoutConflict(name, str(self._recipes[name]), str(recipe))

    @property
    def nbytes(self) -> int:
        """Bytes of everything packed so far."""
        return sum(storage.nbytes for storage in self._packed.values())
