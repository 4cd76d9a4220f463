"""Weights into packed forms by the device: joined, reordered, and decoded or encoded anew on the way."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from devices.cpu.weighing import decoded, encoded
from ostinato.device.encoded import EncodedTensor
from ostinato.devices.cpu import packing
from ostinato.devices.cpu.device import CpuDevice
from ostinato.devices.cpu.weights import GROUP
from ostinato.formats.encodings import ENCODERS
from ostinato.ir import encoding as e
from ostinato.ir.encoding import Encoding
from ostinato.ir.recipe import PackRecipe, interleave

K = 256
DECODED = e.IQ2_XXS
"""An encoding without a form of its own."""


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return CpuDevice(threads=2)


def packed(device: CpuDevice, tensors: list[EncodedTensor], order: str | None = None) -> np.ndarray:
    layout = device.traits.weight_layouts[tensors[0].encoding].name
    recipe = PackRecipe(tuple(tensor.name for tensor in tensors), layout, order)
    return device.pack(recipe, tensors).parts[0].data.array.copy()


def tensor(name: str, encoding: Encoding, n: int, row_order: np.ndarray | None = None) -> EncodedTensor:
    raw = encoded(encoding, n, K, seed=len(name)).reshape(-1)
    return EncodedTensor(name, (n, K), encoding, raw, row_order)


def as_f32(source: EncodedTensor) -> EncodedTensor:
    """The same rows, in the model's order already."""
    values = np.ascontiguousarray(decoded(source.encoding, source.rows()))
    return EncodedTensor(source.name, source.shape, e.F32, values.view(np.uint8).reshape(-1))


def pairs(encoding: Encoding) -> tuple[list[EncodedTensor], str]:
    """Two tensors, one with an order of its own, in turns of 16 rows."""
    turned = tensor("b", encoding, 96, np.random.default_rng(0).permutation(96))
    return [tensor("aa", encoding, 96), turned], interleave(GROUP)


@pytest.mark.parametrize("room", [1, 3 * 4 * K * GROUP, 1 << 30])
def test_decoded_rows_are_packed_as_their_values(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(packing, "_CONVERTED", room)
    tensors, order = pairs(DECODED)
    assert (packed(device, tensors, order) == packed(device, [as_f32(t) for t in tensors], order)).all()
    some = [tensor("c", DECODED, 41), tensor("dd", DECODED, 7)]
    assert (packed(device, some) == packed(device, [as_f32(t) for t in some])).all()


@pytest.mark.parametrize("room", [1, 1 << 30])
def test_rows_encoded_anew_are_packed_as_their_bytes(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(packing, "_CONVERTED", room)
    turned = tensor("a", e.F16, 41, np.random.default_rng(0).permutation(41))
    anew = EncodedTensor("a", turned.shape, e.Q4_1, turned.raw, turned.row_order, e.F16)
    values = ENCODERS[e.Q4_1].encode(decoded(e.F16, turned.rows()))
    direct = EncodedTensor("a", turned.shape, e.Q4_1, values.reshape(-1))
    assert (packed(device, [anew]) == packed(device, [direct])).all()


@pytest.mark.parametrize("encoding", [e.Q4_K, e.Q6_K, e.Q5_1], ids=str)
def test_joined_rows_are_those_of_one_tensor(device: CpuDevice, encoding: Encoding) -> None:
    tensors, order = pairs(encoding)
    rows = np.concatenate([each.rows() for each in tensors])
    rows = rows[PackRecipe(("aa", "b"), "", order).row_order([96, 96])]
    whole = EncodedTensor("c", (192, K), encoding, rows.reshape(-1))
    assert (packed(device, tensors, order) == packed(device, [whole])).all()


def test_a_decoded_weight_is_never_whole_beside_its_packed_form(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_CONVERTED", 1 << 20)
    large = tensor("a", DECODED, 16384)
    tracemalloc.start()
    try:
        device.pack(PackRecipe(("a",), "f32.r16"), [large])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 << 20 < 4 * 16384 * K  # codecs themselves take a megabyte
