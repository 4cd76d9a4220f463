"""Tiny random models against transformers in float32: Llamas with grouped heads, tied head, llama3 and linear
rope scaling, sliding window, biases; a Phi; both write paths; in one call, in pieces, token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.want import All
from ostinato.device.traits import WritePath
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.ir import Location
from ostinato.ir import encoding as enc
from ostinato.models.loader import load_model
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry

NAMES = (
    *(f"tiny-llama-{name}" for name in ("grouped", "tied", "llama3", "linear", "window", "bias")),
    "tiny-phi",
)
PIECES = {
    "one call": [40],
    "uneven": [1, 7, 2, 13, 9, 8],
    "token by token": [1] * 40,
    "prefill, decode": [32] + [1] * 8,
}


@pytest.mark.parametrize("path", WritePath)
@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES.keys())
@pytest.mark.parametrize("name", NAMES)
def test_logits(
    context: InferenceContext, fixtures: Path, name: str, pieces: list[int], path: WritePath
) -> None:
    model = load_model(fixtures / f"{name}.gguf")
    golden = np.load(fixtures / f"{name}.npz")
    cache = KvCache.allocate(model, context, 40)  # filled to exactly its capacity
    got = []
    for count in pieces:
        tokens = golden["tokens"][cache.length : cache.length + count]
        got.append(forward_with_kv_context(model, tokens, cache, context, want=All(), write_path=path))
    assert cache.length == cache.capacity
    np.testing.assert_allclose(np.concatenate(got), golden["logits"], atol=1e-4, rtol=0)


def test_pieces_leave_the_same_cache(context: InferenceContext, fixtures: Path) -> None:
    model = load_model(fixtures / "tiny-llama-grouped.gguf")
    tokens = np.load(fixtures / "tiny-llama-grouped.npz")["tokens"]
    device = context.devices.device(context.location)
    slabs = []
    for pieces in PIECES.values():
        cache = KvCache.allocate(model, context, 40)
        for count in pieces:
            forward_with_kv_context(model, tokens[cache.length : cache.length + count], cache, context)
        slabs.append(
            [device.download(slab, (slab.nbytes // 4,)) for i in range(2) for slab in cache.slabs(i)]
        )
    for other in slabs[1:]:
        for mine, theirs in zip(slabs[0], other, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-4, rtol=0)


def test_half_precision_keys_and_values(context: InferenceContext, fixtures: Path) -> None:
    model = load_model(fixtures / "tiny-llama-grouped.gguf")
    golden = np.load(fixtures / "tiny-llama-grouped.npz")
    cache = KvCache.allocate(model, context, 40, enc.F16)
    got = forward_with_kv_context(model, golden["tokens"], cache, context, want=All())
    difference = np.abs(got - golden["logits"]).max()
    assert 1e-5 < difference < 2e-2  # rounded, and not by more than rounding explains


@pytest.mark.parametrize("path", WritePath)
def test_layers_on_two_devices(fixtures: Path, path: WritePath) -> None:
    devices = Registry()
    for ordinal in (0, 1):
        devices.register(ReferenceDevice(ordinal))
    model = load_model(fixtures / "tiny-llama-grouped.gguf")
    golden = np.load(fixtures / "tiny-llama-grouped.npz")
    context = InferenceContext("reference:0", devices)
    places = [Location("reference", 0), Location("reference", 1)]
    cache = KvCache.allocate(model, context, 40, locations=places)
    assert cache.rebind_location() is None
    got = []
    for count in PIECES["prefill, decode"]:
        tokens = golden["tokens"][cache.length : cache.length + count]
        got.append(forward_with_kv_context(model, tokens, cache, context, want=All(), write_path=path))
    np.testing.assert_allclose(np.concatenate(got), golden["logits"], atol=1e-4, rtol=0)
    packed = [model.weights.store_on(devices.device(place)).nbytes for place in places]
    assert all(packed)  # each device holds its own layer's weights


def all_logits(context: InferenceContext, path: Path, tokens: np.ndarray) -> np.ndarray:
    model = load_model(path)
    cache = KvCache.allocate(model, context, len(tokens))
    first = forward_with_kv_context(model, tokens[:32], cache, context, want=All())
    rest = [forward_with_kv_context(model, [token], cache, context)[None] for token in tokens[32:]]
    return np.concatenate([first, *rest])


@pytest.mark.parametrize("name", ["tiny-llama-grouped", "tiny-phi", "tiny-llama-llama3"])
def test_the_same_weights_from_gguf_and_safetensors(
    context: InferenceContext, fixtures: Path, name: str
) -> None:
    golden = np.load(fixtures / f"{name}.npz")
    from_gguf = all_logits(context, fixtures / f"{name}.gguf", golden["tokens"])
    from_hf = all_logits(context, fixtures / name, golden["tokens"])
    np.testing.assert_allclose(from_hf, golden["logits"], atol=1e-4, rtol=0)
    if name.endswith("llama3"):  # GGUF holds the scaling as numbers that another program rounded
        np.testing.assert_allclose(from_hf, from_gguf, atol=1e-5, rtol=0)
    else:
        np.testing.assert_array_equal(from_hf, from_gguf)
