"""Joined and fused plans compute what plain ones do: logits of all families, entry points and write paths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from decode.sessionkit import ENTRIES, HELD, Entry, World, same_bits, tokens_of
from devices.fused import FusedDevice
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import All
from ostinato.device.traits import WritePath
from ostinato.ir import encoding as enc
from ostinato.ir.recipe import PackRecipe
from ostinato.models.contract import Model
from ostinato.models.loader import load_model
from ostinato.runtime.registry import Registry
from sabotage import goes_red

MODELS = ("llama-grouped", "llama-tied", "llama-window", "llama-bias", "phi")
PIECES = (9, 1, 1, 5, 1, 1, 1, 12, 1)
PLAIN = {"regions": (), "row_group": None}
REGIONS = {"row_group": None}
EVERYTHING: dict[str, object] = {}
ROUNDED = {"quantize": {enc.F32: 32}}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """BLAS shares its sums by the number of threads."""
    with threadpool_limits(1, user_api="blas"):
        yield


def logits(model: Model, entry: Entry, path: WritePath, **wishes: object) -> np.ndarray:
    """Of a prefill, single tokens and longer steps, one after another: `[positions, vocab]`."""
    devices = Registry()
    device = FusedDevice(write_path=path, **wishes)  # type: ignore[arg-type]
    devices.register(device)
    world, slot = World(devices, (device.location,)), DecodeSlot()
    cache, tokens = world.cache(model), tokens_of(sum(PIECES))
    rows, at = [], 0
    for count in PIECES:
        # a token alone goes to the decode plan, and to its capture
        want = {"want": All()} if count > 1 else {}
        got = entry(model, tokens[at : at + count], cache, world, slot, write_path=path, **want)
        rows.append(got.reshape(count, -1))
        at += count
    if entry is not ENTRIES[0]:
        assert slot.statistics.replanned == 0
    return np.concatenate(rows)


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, fixtures: Path) -> Model:
    return load_model(fixtures / f"tiny-{request.param}.gguf")


@pytest.mark.parametrize("path", WritePath)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
@pytest.mark.parametrize("rounding", [{}, ROUNDED], ids=["exact", "rounded"])
def test_regions_change_no_bit(
    model: Model, entry: Entry, path: WritePath, rounding: dict[str, object]
) -> None:
    fused = logits(model, entry, path, **REGIONS, **rounding)
    same_bits(fused, logits(model, entry, path, **PLAIN, **rounding))


@pytest.mark.parametrize("path", WritePath)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_joined_products_change_no_more_than_a_product_of_another_shape(
    model: Model, entry: Entry, path: WritePath
) -> None:
    """BLAS may sum a row in another order where there are more of them: some last places."""
    plain = logits(model, entry, path, **PLAIN)
    joined = logits(model, entry, path, **EVERYTHING)
    np.testing.assert_allclose(joined, plain, rtol=0, atol=4e-6 * np.abs(plain).max())


def test_rounding_shows_in_the_logits(fixtures: Path) -> None:
    model = load_model(fixtures / "tiny-llama-grouped.gguf")
    exact = logits(model, HELD, WritePath.DEVICE_OFFSET)
    rounded = logits(model, HELD, WritePath.DEVICE_OFFSET, **ROUNDED)
    off = np.abs(rounded - exact).max() / np.abs(exact).max()
    assert 1e-4 < off < 0.1


def test_rows_packed_in_another_order_are_seen(fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        model = load_model(fixtures / "tiny-llama-bias.gguf")  # packed anew
        joined = logits(model, HELD, WritePath.DEVICE_OFFSET, **EVERYTHING)
        plain = logits(model, HELD, WritePath.DEVICE_OFFSET, **PLAIN)
        np.testing.assert_allclose(joined, plain, rtol=0, atol=4e-6 * np.abs(plain).max())

    goes_red(monkeypatch, PackRecipe, "row_order", lambda self, rows: np.arange(sum(rows)), check)
