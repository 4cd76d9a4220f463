"""MatMul over views: errors of one fixed order of terms, the same bits alone and among others."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from devices.cpu.loopcases import COLS, ROWS, Case, case, extents, given, ordinary, places, results
from devices.cpu.running import HOST_ISAS, Kernels
from ostinato.ir import DType
from ostinato.ir.ops import movement, product

FLIP = (movement.Transpose((1, 0)),)
PART = (movement.Slice(1, 2, 30),)
SWAP = (movement.Transpose((0, 2, 1)),)
SOME_ROWS = tuple({ROWS: rows} for rows in (0, 1, 3, 40))
BOTH = tuple({ROWS: rows, COLS: cols} for rows, cols in ((0, 3), (1, 1), (5, 16), (17, 70)))

SHAPES = [
    (given(5, 7), given(7, 200), ({},)),
    (given(5, 7), given(7, 9), ({},)),
    (given(1, 1), given(1, 1), ({},)),
    (given(3, 0), given(0, 5), ({},)),
    (given(0, 3), given(3, 5), ({},)),
    (given(3, 40), given(40, 1), ({},)),
    (given(ROWS, 24), given(40, 24, moves=FLIP), SOME_ROWS),
    (given(ROWS, 40), given(3, 40, moves=FLIP), SOME_ROWS),
    (given(ROWS, 300), given(300, 150), SOME_ROWS),
    (given(24, ROWS, moves=FLIP), given(40, 24, moves=FLIP), SOME_ROWS),
    (given(24, ROWS, moves=FLIP), given(24, 40), SOME_ROWS),
    (given(ROWS, 30, moves=PART), given(40, 60, moves=[movement.Slice(1, 9, 37), *FLIP]), SOME_ROWS),
    (given(2, 3, 4, 8), given(3, 8, 20), ({},)),
    (given(4, 8), given(2, 3, 8, 20), ({},)),
    (given(2, 1, ROWS, 8), given(1, 3, COLS, 8, moves=[movement.Transpose((0, 1, 3, 2))]), BOTH),
    (given(3, ROWS, COLS), given(3, COLS, 8), BOTH),
    (given(ROWS, 3, 8, moves=[movement.Transpose((1, 0, 2))]), given(3, 5, 8, moves=SWAP), SOME_ROWS),
    (given(4, 24), given(24, ROWS), SOME_ROWS),
    (given(4, ROWS), given(ROWS, 24), SOME_ROWS),
]  # fmt: skip
CASES = [case(product.MatMul(), a, b, envs=envs) for a, b, envs in SHAPES]
CASES.append(case(product.MatMul(), given(5, 7), given(7, 20), output=given(20, 5, moves=FLIP)))


@pytest.fixture(scope="module", params=HOST_ISAS, ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param, [one.kernel for one in CASES])


@pytest.mark.parametrize("one", CASES, ids=str)
def test_products(kernels: Kernels, one: Case) -> None:
    """Each element within (k + 5)·2⁻²³ of the sum of its terms' absolute values, for two roundings a term."""
    for pairs in one.envs:
        env = dict(pairs)
        kept: list[np.ndarray] = []

        def fill(rng: np.random.Generator, dtype: DType, count: int, kept: list = kept) -> np.ndarray:
            kept.append(ordinary(rng, dtype, count))
            return kept[-1]

        result, _ = results(kernels, one, env, fill)
        a, b = (
            buffer[places(operand.view, env)].astype(np.float64)
            for buffer, operand in zip(kept, one.operands, strict=True)
        )
        bound = (a.shape[-1] + 5) * 2.0**-23 * (np.abs(a) @ np.abs(b))
        assert (np.abs(result - a @ b) <= bound).all()


@pytest.mark.parametrize("at", [6, 7, 8, 9, 10, 11, 16])
def test_a_row_has_its_bits_alone_and_among_others(kernels: Kernels, at: int) -> None:
    one = CASES[at]
    left, right = one.operands
    rng = np.random.default_rng(6)
    a = ordinary(rng, DType.F32, places(left.view, {ROWS: 40}).max() + 1)
    b = ordinary(rng, DType.F32, prod(extents(right.shape, {})))

    def run(rows: int, values: np.ndarray) -> np.ndarray:
        buffers = iter((values, b))
        return results(kernels, one, {ROWS: rows}, lambda rng, dtype, count: np.resize(next(buffers), count))[
            0
        ]

    together = run(40, a)
    for row in (0, 7, 39):
        among, alone = places(left.view, {ROWS: 40}).take([row], -2), places(left.view, {ROWS: 1})
        values = np.zeros(alone.max() + 1, np.float32)
        values[alone] = a[among]
        assert run(1, values).tobytes() == together.take([row], -2).tobytes()


def test_order_of_terms(kernels: Kernels) -> None:
    """Columns that are neighbours: one term after another, in one rounding each if the set can."""
    rng = np.random.default_rng(8)
    fused = "llvm.fma" in kernels.ir
    a, b = (ordinary(rng, DType.F32, n) for n in (35, 1400))
    filled = iter((a, b))
    result, _ = results(kernels, CASES[0], {}, lambda *_: next(filled))
    x, y = a.reshape(5, 7), b.reshape(7, 200)
    total = np.zeros((5, 200), np.float32)
    for k in range(7):
        exact = x[:, k : k + 1].astype(np.float64) * y[k].astype(np.float64)
        term = exact if fused else exact.astype(np.float32)
        # a float64 sum of a product of two float32 and a float32 rounds twice, but hardly ever elsewhere
        total = (total + term).astype(np.float32)
    assert (result != total).mean() < 0.01
