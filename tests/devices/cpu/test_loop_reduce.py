"""Sums, maxima and their indices over views, in one order of terms."""

from __future__ import annotations

import numpy as np
import pytest

from devices.cpu.loopcases import (
    COLS,
    ROWS,
    Case,
    anything,
    case,
    given,
    ordinary,
    places,
    results,
    same_bits,
)
from devices.cpu.running import HOST_ISAS, Kernels
from ostinato.ir import DType
from ostinato.ir.ops import movement, reduce

FLIP = (movement.Transpose((1, 0)),)
PART = (movement.Slice(-1, 2, 39),)
SOME_ROWS = tuple({ROWS: rows} for rows in (0, 1, 3, 40))
BOTH = tuple({ROWS: rows, COLS: cols} for rows, cols in ((0, 3), (1, 1), (5, 16), (17, 37)))

# (operand, axis, values of symbols); the reduced axis is never empty, which numpy refuses for maxima
SHAPES = [
    (given(16), 0, ({},)),
    (given(1), -1, ({},)),
    (given(100), -1, ({},)),
    (given(5, 7), -1, ({},)),
    (given(5, 37), 0, ({},)),
    (given(3, 9000), 1, ({},)),
    (given(40, 5, moves=FLIP), -1, ({},)),
    (given(40, 5, moves=FLIP), 0, ({},)),
    (given(4, 40, moves=PART), -1, ({},)),
    (given(3, 40, 6), 1, ({},)),
    (given(3, 6, 40, moves=[movement.Transpose((0, 2, 1))]), 1, ({},)),
    (given(3, 6, 40, moves=[movement.Transpose((2, 0, 1))]), 1, ({},)),
    (given(ROWS, 24), -1, SOME_ROWS),
    (given(ROWS, 3, 24), 1, SOME_ROWS),
    (given(24, ROWS, moves=FLIP), -1, SOME_ROWS),
    (given(ROWS, 24), 0, SOME_ROWS[1:]),
    (given(3, ROWS), -1, SOME_ROWS[1:]),
    (given(ROWS, COLS), -1, BOTH),
    (given(ROWS, COLS), 0, BOTH[1:]),
]
INSIDE = given(3, 9, 2, moves=[movement.Slice(2, 1, 2)])
SUMS = [case(reduce.Sum(axis), x, envs=envs) for x, axis, envs in SHAPES]
LARGEST = [case(reduce.Max(axis), x, envs=envs) for x, axis, envs in SHAPES]
LARGEST.append(case(reduce.Max(-1), given(3, 9, 20), output=INSIDE))
INDICES = [
    case(reduce.ArgMax(), x, envs=envs) for x, axis, envs in SHAPES if axis % len(x.shape) == len(x.shape) - 1
]


@pytest.fixture(scope="module", params=HOST_ISAS, ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param, [one.kernel for one in (*SUMS, *LARGEST, *INDICES)])


@pytest.mark.parametrize("one", [*LARGEST, *INDICES], ids=str)
def test_largest(kernels: Kernels, one: Case) -> None:
    for env in one.envs:
        same_bits_of_largest(*results(kernels, one, dict(env), without_nan))
        same_bits_of_largest(*results(kernels, one, dict(env), anything))


@pytest.mark.parametrize("one", INDICES, ids=str)
def test_zeros_of_both_signs_are_equals(kernels: Kernels, one: Case) -> None:
    for env in one.envs:
        np.testing.assert_array_equal(*results(kernels, one, dict(env), zeros))


def zeros(rng: np.random.Generator, dtype: DType, count: int) -> np.ndarray:
    return rng.choice(np.array([0.0, -0.0], np.float32), count)


def same_bits_of_largest(result: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(result, expected)  # which zero is the larger is nobody's business


def without_nan(rng: np.random.Generator, dtype: DType, count: int) -> np.ndarray:
    """Many equals, infinities, zeros of both signs."""
    return rng.choice(np.array([0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, 1e-42], np.float32), count)


@pytest.mark.parametrize("one", SUMS, ids=str)
def test_sums(kernels: Kernels, one: Case) -> None:
    """Within 2⁻²⁴ of the sum of the absolute terms for each addition of the longest chain."""
    axis = one.op.axis

    for env in one.envs:
        kept = []

        def fill(rng: np.random.Generator, dtype: DType, count: int, kept: list = kept) -> np.ndarray:
            kept.append(ordinary(rng, dtype, count))
            return kept[-1]

        result, _ = results(kernels, one, dict(env), fill)
        x = kept[0][places(one.operands[0].view, dict(env))].astype(np.float64)
        unit_stride = one.operands[0].view.strides[axis] == 1
        chain = -(-x.shape[axis] // 16) + 4 if unit_stride else x.shape[axis]
        bound = chain * 2.0**-24 * np.abs(x).sum(axis, keepdims=True)
        assert (np.abs(result - x.sum(axis, keepdims=True)) <= bound).all()


def test_order_of_a_sum_is_that_of_its_stride(kernels: Kernels) -> None:
    """Neighbours: sixteen lanes and a tree. Others: one after another, in vectors of sums or alone."""
    x = np.random.default_rng(3).standard_normal((5, 37)).astype(np.float32)
    flat = SUMS[2]  # [100]
    terms = np.resize(x, 100)
    lanes = np.zeros(16, np.float32)
    for start in range(0, 100, 16):
        part = np.zeros(16, np.float32)
        part[: len(terms[start : start + 16])] = terms[start : start + 16]
        lanes += part
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    assert results(kernels, flat, {}, lambda *_: terms)[0].tobytes() == lanes.tobytes()

    down, _ = results(kernels, SUMS[4], {}, lambda *_: x.reshape(-1))  # [5, 37] over axis 0
    total = np.zeros((1, 37), np.float32)
    for row in x:
        total = total + row
    assert down.tobytes() == total.tobytes()


def test_a_row_has_its_bits_alone_and_among_others(kernels: Kernels) -> None:
    one = next(c for c in SUMS if c.operands[0] == given(ROWS, 24))
    x = np.random.default_rng(3).standard_normal((40, 24)).astype(np.float32)
    together, _ = results(kernels, one, {ROWS: 40}, lambda *_: x.reshape(-1))
    for at in range(40):
        alone, _ = results(kernels, one, {ROWS: 1}, lambda *_, at=at: x[at])
        assert alone.tobytes() == together[at].tobytes()


def test_a_sum_of_nothing_is_zero(kernels: Kernels) -> None:
    one = next(c for c in SUMS if c.operands[0] == given(3, ROWS))
    result, expected = results(kernels, one, {ROWS: 0}, ordinary)
    same_bits(result, expected)
