"""The weights of one loaded model, and their packed copies on each device."""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping
from weakref import WeakKeyDictionary

from ostinato.device.contract import Device
from ostinato.device.encoded import EncodedTensor
from ostinato.device.mapped import MapsWeights
from ostinato.device.storage import Storage
from ostinato.errors.device import NoDevice, WeightLayoutConflict
from ostinato.errors.graph import BindingMismatch
from ostinato.formats.pages import release
from ostinato.ir.recipe import PackRecipe
from ostinato.runtime.pack_cache import PackCache, Weights

_log = logging.getLogger("ostinato.runtime")
_weight_set_ids = itertools.count(1)


class WeightSet(Mapping[str, EncodedTensor]):
    """Encoded tensors by canonical name. `id` is minted here and never reused, not even after collection:
    two loads of one file are two weight sets, and a plan made for one is no plan for the other.

    `packs` keeps what is packed for the next process; tensors without an origin are packed each time.
    """

    def __init__(self, tensors: Mapping[str, EncodedTensor], packs: PackCache | None = None) -> None:
        self.id = next(_weight_set_ids)
        self._tensors = dict(tensors)
        self._packs = packs
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

    @property
    def kept(self) -> bool:
        """Whether packed weights are kept for the next process."""
        return self._packs is not None

    def store_on(self, device: Device) -> WeightStore:
        """The one store of this weight set on `device`."""
        with self._lock:
            store = self._stores.get(device)
            if store is None:
                store = self._stores[device] = WeightStore(self._tensors, device, self._packs)
            return store


class WeightStore:
    """Owns the only copy of each packed weight of one weight set on one device; packs on first use.

    It keeps neither alive: a device that is unregistered and no longer held takes its store along.
    """

    def __init__(
        self, weights: Mapping[str, EncodedTensor], device: Device, packs: PackCache | None = None
    ) -> None:
        self._device = weakref.ref(device)
        self._location = device.location
        self._weights = weights
        self._packs = packs
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
                self._pack(self._living(), recipe)
            return self._packed[recipe]

    def fill(self, recipes: Collection[PackRecipe]) -> None:
        """Finds the weights of a plan among those that were kept, or packs and keeps them, all at once. Does
        nothing where nothing is kept, or the device can't map: then `get` packs. Raises what `get` raises."""
        if self._packs is None or all(recipe in self._packed for recipe in recipes):
            return
        device = self._living()
        if not isinstance(device, MapsWeights):
            return
        with self._lock:
            # In one order, whichever plan asks: its weights are then found by every other plan of the model.
            missing = sorted(set(recipes) - set(self._packed), key=str)
            if not missing:
                return
            weights = [(recipe, self._tensors(recipe)) for recipe in missing]
            key = self._packs.key_of(device.packing, weights)
            if key is None or self._adopt(device, key, weights, self._packs):
                return
            storages = [self._pack(device, recipe) for recipe in missing]
            self._packs.keep(key, [device.packed_bytes(storage) for storage in storages])

    def _adopt(self, device: MapsWeights, key: str, weights: Weights, packs: PackCache) -> bool:
        """Whether all of them were kept; then they are this store's."""
        found = packs.find(key)
        if found is None:
            return False
        try:
            storages = [
                device.adopt(recipe, tensors, data)
                for (recipe, tensors), data in zip(weights, found, strict=True)
            ]
        except (BindingMismatch, ValueError) as error:  # packed by rules that changed without `packing`
            _log.warning("packed anew, since what was kept doesn't fit: %s", error)
            return False
        for (recipe, _), storage in zip(weights, storages, strict=True):
            self.check_unshared(recipe)
            self._put(recipe, storage)
        return True

    def _pack(self, device: Device, recipe: PackRecipe) -> Storage:
        self.check_unshared(recipe)
        tensors = self._tensors(recipe)
        storage = device.pack(recipe, tensors)
        self._put(recipe, storage)
        for tensor in tensors:
            release(tensor.raw)  # the packed copy is the only one that is read from here on
        return storage

    def _put(self, recipe: PackRecipe, storage: Storage) -> None:
        self._packed[recipe] = storage
        self._recipes.update(dict.fromkeys(recipe.names, recipe))

    def _tensors(self, recipe: PackRecipe) -> list[EncodedTensor]:
        return [self._weights[name] for name in recipe.names]

    def _living(self) -> Device:
        device = self._device()
        if device is None:
            raise NoDevice(str(self._location), ())
        return device

    def check_unshared(self, recipe: PackRecipe) -> None:
        """Raises WeightLayoutConflict when one of the recipe's tensors is packed by another recipe."""
        for name in recipe.names:
            if name in self._recipes:
                raise WeightLayoutConflict(name, str(self._recipes[name]), str(recipe))

    @property
    def nbytes(self) -> int:
        """Bytes of everything packed so far."""
        return sum(storage.nbytes for storage in self._packed.values())
