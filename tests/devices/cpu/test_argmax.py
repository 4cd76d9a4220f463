"""The index of the largest element, by numpy's rule."""

from __future__ import annotations

import numpy as np
import pytest

from devices.cpu.running import HOST_ISAS, Kernels, aligned, at_page_end
from ostinato.devices.cpu.kernels.argmax import ArgMaxRows

SIZES = [1, 7, 16, 33, 64, 100, 4095, 4096, 4097, 8192, 12345, 49152]


@pytest.fixture(scope="module", params=HOST_ISAS, ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param, [ArgMaxRows(n) for n in SIZES])


def found(kernels: Kernels, x: np.ndarray, order: list[int] | None = None) -> list[int]:
    rows, n = x.shape
    kernel = ArgMaxRows(n)
    out = aligned(rows, np.int64)
    out[:] = -1
    partials = aligned(rows * kernel.partial_bytes + 64, np.uint8)
    partials[:] = 0xFF
    counters = aligned(rows * 64, np.uint8)
    args = [at_page_end(x), out, partials, counters]
    if order is None:
        kernels.run(kernel, args, 0, rows * kernel.chunks)
    else:
        for item in order:
            kernels.run(kernel, args, item, item + 1)
    assert (partials[rows * kernel.partial_bytes :] == 0xFF).all()
    assert not counters.any(), "the next run counts from zero"
    return out.tolist()


@pytest.mark.parametrize("n", SIZES)
def test_random_rows_and_ties(kernels: Kernels, n: int) -> None:
    random = np.random.default_rng(n)
    x = random.normal(size=(6, n)).astype(np.float32)
    x[1] = random.integers(0, 3, n)
    x[2] = 0
    x[2, random.integers(0, n, 2)] = -0.0
    x[3] = -np.inf
    x[4] = -1e-42
    x[4, n - 1] = 1e-45
    x[5, n // 2 :] = np.inf
    assert found(kernels, x) == x.argmax(-1).tolist()


@pytest.mark.parametrize("n", SIZES)
def test_the_first_nan_wins(kernels: Kernels, n: int) -> None:
    random = np.random.default_rng(n)
    x = random.normal(size=(5, n)).astype(np.float32)
    x[0, n - 1] = np.nan
    x[1, random.integers(0, n, 5)] = np.nan
    x[1, 0] = np.inf
    x[2] = np.nan
    x[3] = -np.inf
    x[3, n // 2] = -np.nan
    x[4, n // 3 :: 7] = np.nan
    assert found(kernels, x) == x.argmax(-1).tolist()


@pytest.mark.parametrize("n", [12345, 49152])
def test_the_order_in_which_chunks_arrive_changes_nothing(kernels: Kernels, n: int) -> None:
    random = np.random.default_rng(0)
    x = random.integers(0, 50, (2, n)).astype(np.float32)
    x[1, [n // 2, n - 5]] = np.nan
    for _ in range(5):
        order = random.permutation(2 * ArgMaxRows(n).chunks).tolist()
        assert found(kernels, x, order) == x.argmax(-1).tolist()


@pytest.mark.parametrize("n", [1, 33, 4096, 4097, 49152])
def test_every_place_can_be_the_largest(kernels: Kernels, n: int) -> None:
    places = np.unique(np.linspace(0, n - 1, 40).astype(int))
    x = np.zeros((len(places), n), np.float32)
    x[np.arange(len(places)), places] = 1
    assert found(kernels, x) == places.tolist()
