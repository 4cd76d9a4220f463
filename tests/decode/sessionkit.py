"""What tests of held plans share: micro models, places to run them, and the replanning oracle."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache as memoized
from pathlib import Path
from typing import Any

import numpy as np

from devices.delayed import DelayedDevice
from devices.frail import FrailCpu
from devices.fused import FusedDevice
from devices.running import raw
from ostinato.decode.forward import (
    forward_with_kv_context,
    forward_with_kv_context_captured,
    forward_with_kv_context_persistent,
)
from ostinato.decode.kv_cache import KvCache, slab_shapes
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import LAST
from ostinato.device.contract import Device
from ostinato.device.encoded import EncodedTensor
from ostinato.device.storage import Storage
from ostinato.device.traits import WritePath
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.ir import Location, Tensor
from ostinato.ir import encoding as enc
from ostinato.models.contract import Family, Model
from ostinato.models.llama import LLAMA
from ostinato.models.llama import Config as LlamaConfig
from ostinato.models.phi import PHI
from ostinato.models.phi import Config as PhiConfig
from ostinato.models.rope import RopeSpec
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry
from ostinato.runtime.weights import WeightSet

VOCAB = 48

LLAMA_CONFIG = LlamaConfig(
    vocab_size=VOCAB, context_length=4200, n_layers=2, dim=16, ffn_dim=24, heads=4, kv_heads=2, head_dim=4,
    norm_eps=1e-5, rope=RopeSpec(10000.0, 4), window=None, tied=False, qkv_bias=False, output_bias=False,
    ffn_bias=False,
)  # fmt: skip
PHI_CONFIG = PhiConfig(
    vocab_size=VOCAB, context_length=4200, n_layers=2, dim=16, ffn_dim=24, heads=4, kv_heads=2, head_dim=4,
    norm_eps=1e-5, rope=RopeSpec(10000.0, 2), fused_qkv=False,
)  # fmt: skip


def model_of(family: Family, config: Any, seed: int = 0) -> Model:
    """Random weights, as lively as a trained model's: logits tell one position from the next."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, spec in family.weight_specs(config).items():
        values = random.normal(0, 0.5, spec.shape).astype(np.float32)
        if "norm" in name and not name.endswith("bias"):
            values = 1 + values / 2
        raw = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
        tensors[name] = EncodedTensor(name, spec.shape, enc.F32, raw)
    return Model(family, config, WeightSet(tensors), Path("random"))


@memoized
def micro_llama(seed: int = 0) -> Model:
    return model_of(LLAMA, LLAMA_CONFIG, seed)


@memoized
def micro_phi(seed: int = 0) -> Model:
    return model_of(PHI, PHI_CONFIG, seed)


@memoized
def micro_windowed() -> Model:
    return model_of(LLAMA, replace(LLAMA_CONFIG, window=5))


@memoized
def micro_masked() -> Model:
    """A family that reads the mask: twice over, once within a window of its own making."""

    def forward(config: Any, weights: Any, step: Any, kv: Sequence[Any]) -> Tensor:
        @dataclass
        class Masked:
            inner: Any

            def append(self, k: Tensor, v: Tensor) -> None:
                self.inner.append(k, v)

            def attend(self, q: Tensor, *, window: int | None, scale: float) -> Tensor:
                return self.inner.attend(q, window=window, scale=scale, mask=step.mask)

        return LLAMA.forward(config, weights, step, [Masked(view) for view in kv])

    return model_of(replace(LLAMA, name="masked", forward=forward), LLAMA_CONFIG)


MODELS: dict[str, Callable[[], Model]] = {
    "llama": micro_llama,
    "phi": micro_phi,
    "windowed": micro_windowed,
    "masked": micro_masked,
}


@dataclass(eq=False)
class World:
    """Devices of its own, a context on the first, and the device of each layer (in turn)."""

    devices: Registry
    places: tuple[Location, ...]

    def __post_init__(self) -> None:
        self.context = InferenceContext(self.places[0], self.devices)
        self.apart = InferenceContext(self.places[0], self.devices)  # the oracle's: it counts on its own

    def device(self, at: int = 0) -> Any:
        return self.devices.device(self.places[at])

    def cache(self, model: Model, capacity: int = 64, dtype: enc.Encoding = enc.F32) -> KvCache:
        layers = len(model.config.kv)
        places = [self.places[i % len(self.places)] for i in range(layers)]
        return KvCache.allocate(model, self.context, capacity, dtype, locations=places)

    def copy(self, cache: KvCache) -> KvCache:
        """Another allocation of the same contents and length."""
        slabs = []
        for layer in range(len(cache.geometry)):
            pair = []
            shapes = slab_shapes(cache.geometry[layer], cache.capacity)
            for slab, shape, role in zip(cache.slabs(layer), shapes, "kv", strict=True):
                device = self.devices.device(slab.location)
                other = device.allocate_slab(shape, cache.dtype, role)
                device.copy(slab, other)
                pair.append(other)
            slabs.append((pair[0], pair[1]))
        copied = KvCache(cache.geometry, cache.capacity, cache.dtype, slabs)
        copied.advance(cache.length)
        return copied

    def oracle(
        self, model: Model, tokens: Sequence[int], cache: KvCache, want: Any = LAST,
        path: WritePath | None = None,
    ) -> Any:  # fmt: skip
        """What a fresh plan makes of a copy of the cache."""
        return forward_with_kv_context(
            model, tokens, self.copy(cache), self.apart, want=want, write_path=path
        )

    def slabs(self, cache: KvCache) -> Iterator[tuple[Any, Storage, tuple[int, int, int, int]]]:
        """Each slab with its device and logical shape."""
        for i, layer in enumerate(cache.geometry):
            for slab, shape in zip(cache.slabs(i), slab_shapes(layer, cache.capacity), strict=True):
                yield self.devices.device(slab.location), slab, shape

    def cells(self, cache: KvCache, upto: int | None = None) -> list[np.ndarray]:
        """Each slab's first positions (default: the attended ones): `[kv_heads, upto, dim]`."""
        end = cache.length if upto is None else upto
        return [device.download(slab, shape)[0, :, :end] for device, slab, shape in self.slabs(cache)]

    def checksum(self, cache: KvCache) -> str:
        """Of every byte of every slab."""
        digest = hashlib.sha256()
        for cells in self.cells(cache, cache.capacity):
            digest.update(cells.tobytes())
        return digest.hexdigest()

    @property
    def plans(self) -> int:
        """Plans made so far, the oracle's aside."""
        return self.context.counters.total().optimize_calls

    def fill(self, cache: KvCache, length: int, seed: int = 0) -> None:
        """Random keys and values in the first positions, as if `length` tokens had been run."""
        random = np.random.default_rng(seed)
        for device, slab, shape in self.slabs(cache):
            cells = device.download(slab, shape)
            cells[0, :, :length] = random.normal(0, 1, cells[0, :, :length].shape)
            device.write(cells, slab)
        cache.advance(length)

    def poison(self, cache: KvCache) -> None:
        """NaN in every cell that is not attended."""
        for device, slab, shape in self.slabs(cache):
            cells = device.download(slab, shape)
            cells[0, :, cache.length :] = np.nan
            for part in slab.parts:
                raw(part.data).view(np.uint8)[:] = 0xFF  # NaN, in what a layout fills up with too
            device.write(cells, slab)


def world(kind: str, **options: Any) -> World:
    """reference · split (two references, a layer each) · fused (rounded and joined products, regions) ·
    delayed · bucketed · another kind of the latter · cpu · symbolic cpu (that write path is its own) · two
    cpus · cpu and reference."""
    devices = Registry()
    for device in _devices(kind, options):
        devices.register(device)
    return World(devices, tuple(devices.snapshot().traits))


def _devices(kind: str, options: Mapping[str, Any]) -> list[Device]:
    if kind == "fused":
        return [FusedDevice(row_group=8, quantize={enc.F32: 8})]
    if kind in ("reference", "split"):
        return [ReferenceDevice(i) for i in range(2 if kind == "split" else 1)]
    if kind == "cpu":
        return [FrailCpu(**options)]
    if kind == "symbolic cpu":
        return [FrailCpu(write_path=WritePath.SYMBOLIC)]
    if kind == "two cpus":
        return [FrailCpu(i, threads=1) for i in range(2)]
    if kind == "cpu and reference":
        return [FrailCpu(threads=1), ReferenceDevice()]
    return [DelayedDevice(dynamic_rows=kind != "bucketed", **options)]


WORLDS = ("reference", "split", "fused", "delayed", "bucketed", "cpu", "cpu and reference")
"""Where tests run that name the write path."""
HOMES = (*WORLDS, "symbolic cpu")
"""Where those run that leave it to the device."""
ALONE = ("reference", "delayed", "cpu")
"""One device, of each nature: one that works at once in BLAS's own order, one far away, a native one."""
FRAIL = ("delayed", "cpu")
"""Devices that fail where they are told, overwrite freed memory, and have one order of sums."""


def bytes_of(storage: Storage) -> bytes:
    """What is stored, as it lies there."""
    return b"".join(raw(part.data).tobytes() for part in storage.parts)


@dataclass(frozen=True)
class Entry:
    """One of the three entry points; the replanning one takes no slot."""

    name: str

    def __call__(
        self, model: Model, tokens: Sequence[int], cache: KvCache, world: World, slot: DecodeSlot, **more: Any
    ) -> Any:
        if self.name == "replan":
            return forward_with_kv_context(model, tokens, cache, world.context, **more)
        held = self.name == "held"
        forward = forward_with_kv_context_persistent if held else forward_with_kv_context_captured
        return forward(model, tokens, cache, world.context, slot, **more)


REPLAN, HELD, CAPTURED = ENTRIES = (Entry("replan"), Entry("held"), Entry("captured"))


def same_bits(a: Any, b: Any) -> None:
    """Equal bit for bit (NaN equals NaN, 0 is not -0)."""
    a, b = np.asarray(a), np.asarray(b)
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    if a.tobytes() != b.tobytes():
        np.testing.assert_array_equal(a, b)
        raise AssertionError("signed zeros or NaNs differ")


def tokens_of(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, count)]
