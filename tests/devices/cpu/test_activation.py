"""Activations of rows, against their formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest

from devices.cpu.running import HOST_ISAS, Kernels, aligned, at_page_end
from ostinato.devices.cpu.kernels.activation import Activation

SIZES = [1, 7, 16, 20, 33, 64, 576]


def kernel_for(name: str, k: int) -> Activation:
    return Activation(name, k, x_stride=k + 2, up_stride=k + 1 if name == "swiglu" else 0)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=HOST_ISAS, ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    made = [kernel_for(name, k) for name in ("gelu_tanh", "silu", "swiglu") for k in SIZES]
    return Kernels(request.param, [*made, Activation("silu", 33, 33)])


def spaced(x: np.ndarray, stride: int) -> np.ndarray:
    """Rows `stride` elements apart, the last one right before a guarded page."""
    rows, k = x.shape
    room = np.full((rows, stride), np.nan, np.float32)
    room[:, :k] = x
    return at_page_end(room.reshape(-1)[: rows * stride - (stride - k)])


def formula(name: str, x: np.ndarray, up: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    if name == "gelu_tanh":
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    silu = x / (1 + np.exp(-x))
    return silu * up if name == "swiglu" else silu


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("name", ["gelu_tanh", "silu", "swiglu"])
def test_rows(kernels: Kernels, name: str, k: int) -> None:
    kernel, rows = kernel_for(name, k), 4
    random = np.random.default_rng(k)
    x, up = random.normal(0, 3, (2, rows, k)).astype(np.float32)
    operands = [spaced(x, kernel.x_stride)]
    if name == "swiglu":
        operands.append(spaced(up, kernel.up_stride))
    out = aligned(rows * k + 16)
    out[:] = 7
    kernels.run(kernel, [*operands, out], 0, 1)
    kernels.run(kernel, [*operands, out], 1, rows)
    got = out[: rows * k].reshape(rows, k)
    np.testing.assert_allclose(got, formula(name, x, up), rtol=4e-6, atol=1e-9)
    assert (out[rows * k :] == 7).all()


def test_in_place(kernels: Kernels) -> None:
    x = np.random.default_rng(0).normal(size=(3, 33)).astype(np.float32)
    buffer = at_page_end(x)
    kernels.run(Activation("silu", 33, 33), [buffer, buffer], 0, 3)
    np.testing.assert_allclose(buffer, formula("silu", x, x), rtol=1e-6)
