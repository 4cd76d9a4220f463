"""A process that asks for a model's weights, and what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from devices.frail import FrailCpu
from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.kv_cache import KvCache
from ostinato.device.encoded import EncodedTensor
from ostinato.device.storage import Storage
from ostinato.engine.opened import open_model
from ostinato.ir import PackRecipe
from ostinato.ir.encoding import Encoding
from ostinato.models.contract import Model
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.pack_cache import PackCache
from ostinato.runtime.registry import Registry
from ostinato.runtime.weights import WeightStore
from tinymodels import FIXTURES

KEYS = [f"{index:064x}" for index in range(9)]
TINY = FIXTURES / "tiny-llama-grouped.gguf"
FOLDER = FIXTURES / "tiny-llama-grouped"


class Counting(FrailCpu):
    """How many weights it packed itself."""

    packed = 0

    def pack(self, recipe: PackRecipe, tensors: Sequence[EncodedTensor]) -> Storage:
        self.packed += 1
        return super().pack(recipe, tensors)


@dataclass
class Start:
    """What a process has after it asked for a model's weights."""

    device: Counting
    store: WeightStore
    weights: dict[PackRecipe, bytes]

    @property
    def mapped(self) -> bool:
        return self.device.packed == 0


def recipes_of(model: Model, device: FrailCpu) -> list[PackRecipe]:
    """Each weight by itself."""
    found = []
    for tensor in model.weights.values():
        layout = device.traits.layout(tensor.encoding, len(tensor.shape))
        assert layout is not None
        found.append(PackRecipe((tensor.name,), layout.name))
    return found


def start(path: Path, packs: PackCache | None, encoding: Encoding | None = None) -> Start:
    return started(open_model(path, encoding, packs=packs).model)


def started(model: Model) -> Start:
    device = Counting()
    store, recipes = model.weights.store_on(device), recipes_of(model, device)
    store.fill(recipes)
    return Start(device, store, {each: device.packed_bytes(store.get(each)).tobytes() for each in recipes})


def logits(model: Model, device: FrailCpu) -> np.ndarray:
    """After three tokens and one more."""
    devices = Registry()
    devices.register(device)
    context = InferenceContext("cpu", devices)
    cache = KvCache.allocate(model, context, 8)
    forward_with_kv_context(model, [1, 2, 3], cache, context)
    return forward_with_kv_context(model, [4], cache, context)


def names(packs: PackCache) -> list[str]:
    return [entry.key for entry in packs.entries()]


def only_file(packs: PackCache) -> Path:
    assert packs.folder is not None
    (key,) = names(packs)
    return packs.folder / packs.file_name(key)
