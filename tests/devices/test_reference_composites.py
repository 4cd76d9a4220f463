"""Composite ops, run through their decompositions or by kernels, against their formulas in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from devices.running import const, run
from ostinato.ir import (
    Graph,
    Tensor,
    embedding,
    gelu_tanh,
    layer_norm,
    linear,
    rms_norm,
    rope,
    swiglu,
)
from ostinato.ir.ops import COMPOSITES
from ostinato.ir.ops.nn import Silu, Softmax
from ostinato.ir.ops.product import Linear
from ostinato.ir.ops.region import Region
from ostinato.runtime.context import InferenceContext

RNG = np.random.default_rng(3)
X = RNG.standard_normal((5, 8)).astype(np.float32) * 3
Y = RNG.standard_normal((5, 8)).astype(np.float32)
W, B = (RNG.standard_normal(8).astype(np.float32) for _ in range(2))
M = RNG.standard_normal((6, 8)).astype(np.float32)
MB = RNG.standard_normal(6).astype(np.float32)
Q = RNG.standard_normal((5, 2, 8)).astype(np.float32)
ANGLES = RNG.standard_normal((5, 3))
IDS = np.array([5, 0, 5], np.int64)
X64 = X.astype(np.float64)
EPS = 1e-3


def rotated() -> np.ndarray:
    """Each pair (i, i + 3) as a complex number times e^(i·angle); elements 6 and 7 stay."""
    out = Q.astype(np.float64)
    for row in range(5):
        for i in range(3):
            turned = (Q[row, :, i] + 1j * Q[row, :, i + 3]) * np.exp(1j * ANGLES[row, i])
            out[row, :, i], out[row, :, i + 3] = turned.real, turned.imag
    return out


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


CASES: dict[str, tuple[Callable[..., Tensor], list[np.ndarray], np.ndarray]] = {
    "RmsNorm": (
        lambda x, w: rms_norm(x, w, EPS),
        [X, W],
        X64 / np.sqrt((X64**2).mean(-1, keepdims=True) + EPS) * W,
    ),
    "LayerNorm": (
        lambda x, w, b: layer_norm(x, w, b, EPS),
        [X, W, B],
        (X64 - X64.mean(-1, keepdims=True)) / np.sqrt(X64.var(-1, keepdims=True) + EPS) * W + B,
    ),
    "Linear": (linear, [X, M, MB], X64 @ M.T + MB),
    "Linear without bias": (linear, [X, M], X64 @ M.T),
    "Embedding": (lambda i, t: embedding(i, t), [IDS, M], M[[5, 0, 5]]),
    "Silu": (lambda x: x.apply(Silu()), [X], X64 / (1 + np.exp(-X64))),
    "Silu far out": (lambda x: x.apply(Silu()), [np.float32([-200.0, 200.0])], np.array([0.0, 200.0])),
    "SwiGlu": (swiglu, [X, Y], X64 / (1 + np.exp(-X64)) * Y),
    "GeluTanh": (
        gelu_tanh,
        [X],
        X64 / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (X64 + 0.044715 * X64**3))),
    ),
    "GeluTanh far out": (gelu_tanh, [np.float32([-1e4, 1e4])], np.array([0.0, 1e4])),
    "Softmax": (lambda x: x.apply(Softmax()), [X], softmax(X64)),
    "Softmax masked": (
        lambda x: x.apply(Softmax()),
        [np.float32([[0, -np.inf, 1e4]])],
        np.array([[0.0, 0.0, 1.0]]),
    ),
    "Rope": (
        rope,
        [Q, np.cos(ANGLES).astype(np.float32), np.sin(ANGLES).astype(np.float32)],
        rotated(),
    ),
    "Region": (
        lambda x, m, y: x.apply(Region("twice", 3, ((Linear(), (0, 1)), (Linear(), (3, 2)))), m, y),
        [X, M, MB[None, :]],
        X64 @ M.T @ MB[:, None],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_composite(anywhere: InferenceContext, name: str) -> None:
    write, arrays, expected = CASES[name]
    graph = Graph()
    data = [const(graph, array) for array in arrays]
    got = run(anywhere, write(*(tensor for tensor, _ in data)), *data)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


def test_every_composite_is_here() -> None:
    # attention has a file of its own
    assert {op.__name__ for op in COMPOSITES} - {"Attention"} == {name.split()[0] for name in CASES}
