"""Elementwise loop kernels against the reference device's functions, bit for bit where IEEE 754 says it."""

from __future__ import annotations

import numpy as np
import pytest

from devices.cpu.loopcases import (
    COLS,
    ROWS,
    Case,
    Given,
    anything,
    case,
    given,
    ordinary,
    results,
    same_bits,
    ulps,
)
from devices.cpu.running import HOST_ISAS, Kernels
from ostinato.ir import DType
from ostinato.ir.ops import elementwise, movement

F32, F16, I64, BOOL = DType.F32, DType.F16, DType.I64, DType.BOOL
FLIP = (movement.Transpose((1, 0)),)
SOME_ROWS = tuple({ROWS: rows} for rows in (0, 1, 3, 40))
SOME = tuple({ROWS: rows, COLS: cols} for rows, cols in ((0, 3), (1, 1), (3, 0), (5, 17), (19, 33)))

# both operands of a binary op, by how they lie
PAIRS = {
    "scalars": (given(), given(), ({},)),
    "empty": (given(0, 3), given(3), ({},)),
    "vector": (given(37), given(37), ({},)),
    "whole vectors": (given(2, 16), given(2, 16), ({},)),
    "many": (given(3, 5000), given(3, 5000), ({},)),
    "scalar on the right": (given(5, 24), given(), ({},)),
    "row and column": (given(1, 24), given(5, 1), ({},)),
    "outer": (given(7, 1, 20), given(3, 1), ({},)),
    "transposed": (given(24, 5, moves=FLIP), given(5, 24), ({},)),
    "both transposed": (given(24, 5, moves=FLIP), given(24, 5, moves=FLIP), ({},)),
    "sliced": (given(6, 40, moves=[movement.Slice(-1, 3, 40)]), given(6, 37), ({},)),
    "rows": (given(ROWS, 24), given(24), SOME_ROWS),
    "rows of one": (given(ROWS, 1), given(), SOME_ROWS),
    "wide rows": (given(ROWS, 5000), given(5000), ({ROWS: 2},)),
    "rows inside": (given(3, ROWS, 8, moves=[movement.Slice(0, 1, 3)]), given(1, ROWS, 1), SOME_ROWS),
    "rows last": (given(ROWS, 3, moves=FLIP), given(3, 1), SOME_ROWS),
    "many rows": (given(ROWS, 24), given(ROWS, 24), ({ROWS: 400},)),
    "rows and columns": (given(ROWS, COLS), given(COLS), SOME),
    "rows by columns": (given(COLS, ROWS, moves=FLIP), given(ROWS, 1), SOME),
    "rows and rows": (given(ROWS, 1, 300), given(1, ROWS, 1), SOME_ROWS),
}
BINARY = (
    elementwise.Add(),
    elementwise.Sub(),
    elementwise.Mul(),
    elementwise.Less(),
    elementwise.LessEqual(),
)


def typed(one: Given, dtype: DType) -> Given:
    return given(*one.shape, dtype=dtype, moves=one.moves)


def binary_cases() -> list[Case]:
    cases = [case(elementwise.Add(), a, b, envs=envs) for a, b, envs in PAIRS.values()]
    for at, op in enumerate((*BINARY, elementwise.Div())):
        for name in list(PAIRS)[at::3]:
            a, b, envs = PAIRS[name]
            cases.append(case(op, a, b, envs=envs))
            if not isinstance(op, elementwise.Div):
                cases.append(case(op, typed(a, I64), typed(b, I64), envs=envs))
    for name in ("vector", "row and column", "rows last", "many rows"):
        a, b, envs = PAIRS[name]
        cases.append(case(elementwise.And(), typed(a, BOOL), typed(b, BOOL), envs=envs))
    return cases


def unary_cases() -> list[Case]:
    moves = [movement.Slice(1, 1, 20), movement.Transpose((1, 0))]
    cases = [
        case(op, operand, envs=envs)
        for op in (elementwise.Neg(), elementwise.Sqrt())
        for operand, envs in (
            (given(40), ({},)),
            (given(ROWS, 24, moves=moves), SOME_ROWS),
            (given(3, 24, moves=moves), ({},)),
        )
    ]
    for source in DType:
        for target in DType:
            cases.append(case(elementwise.Cast(target), given(ROWS, 21, dtype=source), envs=SOME_ROWS))
            cases.append(case(elementwise.Cast(target), given(8, 3, dtype=source, moves=FLIP)))
    return cases


def where_cases() -> list[Case]:
    condition = given(ROWS, 1, dtype=BOOL)
    return [
        case(elementwise.Where(), condition, given(ROWS, 21, dtype=dtype), given(dtype=dtype), envs=SOME_ROWS)
        for dtype in DType
    ] + [
        case(elementwise.Where(), given(21, dtype=BOOL), given(8, 21, dtype=F16), given(8, 1, dtype=F16)),
        case(elementwise.Where(), given(8, 21, dtype=BOOL), given(21, 8, moves=FLIP), given(8, 1)),
    ]


def placed_cases() -> list[Case]:
    """Outputs that are a part of something larger, or lie across it."""
    inside = [movement.Slice(1, 5, 29), movement.Slice(0, 1, 4)]
    return [
        case(elementwise.Add(), given(3, 24), given(24), output=given(6, 40, moves=inside)),
        case(elementwise.Neg(), given(5, 24), output=given(24, 5, moves=FLIP)),
        case(
            elementwise.Mul(),
            given(ROWS, 24),
            given(24),
            output=given(2, ROWS, 24, moves=[movement.Slice(0, 1, 2), movement.Squeeze(0)]),
            envs=SOME_ROWS,
        ),
    ]


EXACT = [*binary_cases(), *unary_cases(), *where_cases(), *placed_cases()]
CURVES = [
    case(op, operand, envs=envs)
    for op in (elementwise.Exp(), elementwise.Tanh())
    for operand, envs in ((given(ROWS, 40), SOME_ROWS), (given(40, 21, moves=FLIP), ({},)))
]


@pytest.fixture(scope="module", params=HOST_ISAS, ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param, [one.kernel for one in (*EXACT, *CURVES)])


@pytest.mark.parametrize("one", EXACT, ids=str)
def test_exact(kernels: Kernels, one: Case) -> None:
    whole = (
        isinstance(one.op, elementwise.Cast) and one.op.dtype is I64
    )  # what has no int64 has no one answer
    for env in one.envs:
        fill = ordinary if whole else anything
        same_bits(*results(kernels, one, dict(env), fill))


@pytest.mark.parametrize("one", CURVES, ids=str)
def test_exp_and_tanh(kernels: Kernels, one: Case) -> None:
    exact = np.exp if isinstance(one.op, elementwise.Exp) else np.tanh
    seen = []

    def fill(rng: np.random.Generator, dtype: DType, count: int) -> np.ndarray:
        values = (rng.standard_normal(count) * 8).astype(np.float32)
        seen.append(values)
        return values

    for env in one.envs:
        result, reference = results(kernels, one, dict(env), fill)
        x = seen[-1].reshape(40, 21).T if one.operands[0].moves else seen[-1].reshape(reference.shape)
        assert ulps(result, exact(x.astype(np.float64))) <= 3


def test_vectors_and_single_elements_have_the_same_bits(kernels: Kernels) -> None:
    """A transposed operand goes element by element, a row-major one in vectors."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal(40 * 21).astype(np.float32)
    for at in (0, 2):
        rows, flipped = CURVES[at], CURVES[at + 1]
        a, _ = results(kernels, rows, {ROWS: 21}, lambda *_: x)
        b, _ = results(kernels, flipped, {}, lambda *_: x.reshape(21, 40).T.reshape(-1).copy())
        assert a.tobytes() == b.tobytes()


def test_casts_beyond_int64_are_its_ends(kernels: Kernels) -> None:
    one = next(c for c in EXACT if c.op == elementwise.Cast(I64) and c.operands[0].dtype is F32)
    x = np.zeros(21, np.float32)
    x[:5] = np.inf, -np.inf, np.nan, 1e30, -1e30
    result, _ = results(kernels, one, {ROWS: 1}, lambda *_: x)
    assert result[0, :5].tolist() == [2**63 - 1, -(2**63), 0, 2**63 - 1, -(2**63)]
