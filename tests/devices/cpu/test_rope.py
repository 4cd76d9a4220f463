"""Rotary embedding, bit for bit what the reference device computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from devices.cpu.running import HOST_ISAS, Kernels, aligned, at_page_end
from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.kernels.rope import RopeRows, rope_to

SHAPES = [
    (9, 64, 64),
    (3, 64, 32),
    (2, 80, 32),
    (4, 8, 8),
    (2, 24, 20),
    (1, 7, 2),
    (3, 128, 128),
    (2, 40, 36),
]


@dataclass(frozen=True)
class RotateInPlace(Kernel):
    """`rope_to` with a scale, over the head that it reads. An item is a head; all have the same table."""

    head_dim: int
    rot: int
    scale: float

    @property
    def params(self) -> tuple[str, ...]:
        return ("x", "cos", "sin")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        for i, _ in f.range(f["low"], f["high"]):
            x = f.at(args["x"], i * (4 * self.head_dim))
            rope_to(f, self.head_dim, self.rot, x, args["cos"], args["sin"], x, self.scale)


def rows_kernel(heads: int, head_dim: int, rot: int) -> RopeRows:
    return RopeRows(heads, head_dim, rot, x_stride=heads * head_dim + 5, table_stride=rot // 2)


@pytest.fixture(scope="module", params=HOST_ISAS, ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    heads = [RotateInPlace(head_dim, rot, 0.125 * 1.1) for _, head_dim, rot in SHAPES]
    return Kernels(request.param, [*(rows_kernel(*shape) for shape in SHAPES), *heads])


def rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """float32, x [rows, heads, head_dim]."""
    half = cos.shape[1]
    cos, sin = cos[:, None], sin[:, None]
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)


def operands(rows: int, heads: int, head_dim: int, rot: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, heads, head_dim)).astype(np.float32)
    x[0, 0, :2] = 1e-41, -0.0
    angle = random.uniform(0, 100, (rows, rot // 2))
    return x, np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_rows(kernels: Kernels, shape: tuple[int, int, int]) -> None:
    rows, kernel = 3, rows_kernel(*shape)
    x, cos, sin = operands(rows, *shape)
    spaced = np.full((rows, kernel.x_stride), np.nan, np.float32)
    spaced[:, : x[0].size] = x.reshape(rows, -1)
    out = aligned(x.size + 16)
    out[:] = 7
    args = [at_page_end(spaced.reshape(-1)[:-5]), at_page_end(cos), at_page_end(sin), out]
    kernels.run(kernel, args, 0, 1)
    kernels.run(kernel, args, 1, rows)
    want = rotated(x, cos, sin)
    np.testing.assert_array_equal(out[: x.size].view(np.uint32), want.reshape(-1).view(np.uint32))
    assert (out[x.size :] == 7).all()


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_a_head_is_rotated_and_scaled_where_it_is(kernels: Kernels, shape: tuple[int, int, int]) -> None:
    x, cos, sin = operands(1, *shape)
    scale = 0.125 * 1.1
    heads = at_page_end(x[0])
    kernels.run(RotateInPlace(*shape[1:], scale), [heads, at_page_end(cos), at_page_end(sin)], 0, shape[0])
    want = rotated(x, cos, sin)[0] * np.float32(scale)
    np.testing.assert_array_equal(heads.view(np.uint32), want.view(np.uint32))
