"""Copies, joins, gathered rows, leaves: every bit as it was, errors reported, nothing read out of range."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from devices.cpu.loopcases import (
    COLS,
    ROWS,
    Case,
    Env,
    Given,
    case,
    extents,
    given,
    items,
    places,
    results,
    run_kernel,
)
from devices.cpu.running import HOST_ISAS, Kernels, at_page_end
from ostinato.devices.cpu.kernels.loopnest import loop_kernel
from ostinato.devices.cpu.views import contiguous
from ostinato.ir import DType, SymId
from ostinato.ir.ops import const, movement, product, quantize, slab
from ostinato.ir.shape import DataDim, NodeId, Operand

F32, F16, I64, BOOL = DType.F32, DType.F16, DType.I64, DType.BOOL
FLIP = (movement.Transpose((1, 0)),)
SOME_ROWS = tuple({ROWS: rows} for rows in (0, 1, 3, 40))
BOTH = tuple({ROWS: rows, COLS: cols} for rows, cols in ((0, 3), (1, 1), (5, 17)))


def bits(rng: np.random.Generator, dtype: DType, count: int) -> np.ndarray:
    """Every pattern of bits, signalling NaN among them."""
    if dtype is BOOL:
        return rng.integers(0, 2, count).astype(bool)
    return np.frombuffer(rng.bytes(count * dtype.nbytes), dtype.numpy)


COPIES = [
    case(movement.Clone(), one, envs=envs)
    for dtype in DType
    for one, envs in (
        (given(dtype=dtype), ({},)),
        (given(0, 3, dtype=dtype), ({},)),
        (given(5, 33, dtype=dtype), ({},)),
        (given(40, 5, dtype=dtype, moves=FLIP), ({},)),
        (given(ROWS, 40, dtype=dtype, moves=[movement.Slice(1, 3, 30)]), SOME_ROWS),
        (given(2, ROWS, 3, dtype=dtype, moves=[movement.Transpose((1, 2, 0))]), SOME_ROWS),
        (given(ROWS, 3, COLS, dtype=dtype, moves=[movement.Transpose((2, 1, 0))]), BOTH),
    )
]
MOVED = [
    case(
        movement.Reshape((40, ROWS)), given(ROWS, 5, 8, moves=[movement.Transpose((1, 0, 2))]), envs=SOME_ROWS
    ),
    case(movement.Reshape((ROWS, 40)), given(ROWS, 5, 8), envs=SOME_ROWS),
    case(movement.Transpose((1, 0)), given(ROWS, 24), envs=SOME_ROWS),
    case(movement.Slice(1, 1, 3), given(ROWS, 24), envs=SOME_ROWS),
    case(movement.Unsqueeze(0), given(ROWS, 24, moves=FLIP), envs=SOME_ROWS),
    case(movement.Squeeze(1), given(ROWS, 1, 24), envs=SOME_ROWS),
]
JOINS = [
    case(movement.Concat(0), given(3, 5), given(4, 5)),
    case(movement.Concat(-1), given(3, 5), given(3, 0), given(3, 20)),
    case(movement.Concat(0), given(30, 300), given(4, 300), given(300, 2, moves=FLIP)),
    case(movement.Concat(-1), given(ROWS, 3, 8), given(ROWS, 3, 8), given(ROWS, 3, 4), envs=SOME_ROWS),
    case(movement.Concat(0), given(1, ROWS, 7), given(2, ROWS, 7), envs=({ROWS: 900}, {ROWS: 3}, {ROWS: 0})),
    case(
        movement.Concat(1), given(ROWS, 2, dtype=I64), given(3, ROWS, dtype=I64, moves=FLIP), envs=SOME_ROWS
    ),
    case(movement.Concat(1), given(ROWS, 2, COLS, dtype=F16), given(ROWS, 1, COLS, dtype=F16), envs=BOTH),
    case(movement.Concat(0), given(2, dtype=BOOL)),
    case(movement.Concat(1), given(3, 5), given(3, 4), output=given(9, 3, moves=FLIP)),
]
LEAVES = [
    *(case(const.Scalar(2.5, dtype)) for dtype in (F32, F16)),
    *(case(const.Scalar(value, F32)) for value in (float("inf"), float("-inf"), float("nan"), 0.1, 1e39)),
    *(case(const.Scalar(value, F16)) for value in (1e6, -65519.0, 6e-8)),
    case(const.Scalar(-3, I64)),
    case(const.Scalar(1, BOOL)),
    case(const.SymbolValue(ROWS), envs=SOME_ROWS),
    *(case(const.Iota(extent)) for extent in (0, 1, 16, 37, 9000)),
    case(const.Iota(ROWS), envs=(*SOME_ROWS, {ROWS: 5000})),
    case(const.Iota(7), output=given(7, 2, dtype=I64, moves=[movement.Slice(1, 1, 2), movement.Squeeze(1)])),
]
EXACT = [*COPIES, *MOVED, *JOINS, *LEAVES]

TABLES = [
    (given(9, 24), given(5, dtype=I64), ({},)),
    (given(9, 5000), given(2, dtype=I64), ({},)),
    (given(9), given(5, dtype=I64), ({},)),
    (given(9, 1), given(ROWS, dtype=I64), SOME_ROWS),
    (given(9, 24), given(ROWS, dtype=I64), SOME_ROWS),
    (given(24, 9, moves=FLIP), given(ROWS, dtype=I64), SOME_ROWS),
    (given(9, 3, 7, dtype=F16, moves=[movement.Slice(1, 1, 3)]), given(ROWS, dtype=I64), SOME_ROWS),
    (given(ROWS, 24, dtype=BOOL), given(5, dtype=I64), SOME_ROWS[1:]),
    (given(ROWS, dtype=I64), given(5, dtype=I64), SOME_ROWS[1:]),
    (
        given(9, 24, moves=[movement.Slice(0, 2, 8), movement.Slice(1, 1, 20)]),
        given(ROWS, 2, dtype=I64, moves=[movement.Slice(1, 1, 2), movement.Squeeze(1)]),
        SOME_ROWS,
    ),
]
GATHERS = [case(movement.Gather(), table, rows, envs=envs) for table, rows, envs in TABLES]

GIVEN_COUNT = replace(contiguous((1,), I64), shape=(DataDim(NodeId(0)),))
COUNTED = loop_kernel(const.Iota(Operand(0)), [contiguous((), I64)], GIVEN_COUNT, bound=40)


@pytest.fixture(scope="module", params=HOST_ISAS, ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param, [COUNTED, *(one.kernel for one in (*EXACT, *GATHERS))])


@pytest.mark.parametrize("one", EXACT, ids=str)
def test_every_bit_is_moved(kernels: Kernels, one: Case) -> None:
    for env in one.envs:
        result, expected = results(kernels, one, dict(env), bits)
        if isinstance(one.op, const.Scalar):
            np.testing.assert_array_equal(result, expected)
        else:
            assert result.tobytes() == expected.tobytes()


def gathered(
    kernels: Kernels, one: Case, env: Env, rows: np.ndarray, error: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel gives and the table, for these row indices."""
    table, index = one.operands
    rng = np.random.default_rng(4)
    buffer = bits(rng, table.dtype, prod(extents(table.shape, env)))
    indices = np.full(prod(extents(index.shape, env)), -1, np.int64)
    indices[places(index.view, env)] = rows
    buffers = [at_page_end(array) for array in (buffer, indices)]
    parts = [(0, items(one.kernel, env))]
    result = run_kernel(kernels, one.kernel, env, buffers, one.target, parts, error)
    return result, buffer[places(table.view, env)]


@pytest.mark.parametrize("one", GATHERS, ids=str)
def test_rows_are_gathered(kernels: Kernels, one: Case) -> None:
    for pairs in one.envs:
        env = dict(pairs)
        size, count = (extents(operand.view.shape, env)[0] for operand in one.operands)
        rows = np.random.default_rng(5).integers(0, size, count)
        result, table = gathered(kernels, one, env, rows)
        assert result.tobytes() == table[rows].tobytes()


@pytest.mark.parametrize("bad", [-1, 9, 2**62, -(2**63)])
@pytest.mark.parametrize("at", [0, 2, 3, 4])
def test_a_row_outside_the_table_is_reported_and_not_read(kernels: Kernels, at: int, bad: int) -> None:
    rows, error = np.array([1, bad, 3, 2, 8]), np.zeros(3, np.int64)
    result, table = gathered(kernels, GATHERS[at], {ROWS: 5}, rows, error)
    assert error.tolist() == [7, bad, 9]
    assert result.tobytes() == table[[1, 0, 3, 2, 8]].tobytes()


@pytest.mark.parametrize("at", [7, 8])
def test_a_table_without_rows_is_not_read(kernels: Kernels, at: int) -> None:
    error = np.zeros(3, np.int64)
    gathered(kernels, GATHERS[at], {ROWS: 0}, np.zeros(5, np.int64), error)
    assert error.tolist() == [7, 0, 0]


@pytest.mark.parametrize("count", [0, 1, 16, 39, 40])
def test_iota_of_an_operand(kernels: Kernels, count: int) -> None:
    whole = np.full(40, -1, np.int64)
    error = np.zeros(3, np.int64)
    args = {"in0": np.array([count]), "out": at_page_end(whole), "error": error, "code_n": 3}
    kernels.run(COUNTED, [args[name] for name in COUNTED.params], 0, 1)
    expected = np.where(np.arange(40) < count, np.arange(40), -1)
    np.testing.assert_array_equal(args["out"], expected)
    assert not error.any()


@pytest.mark.parametrize("count", [-1, 41, 2**40])
def test_iota_of_more_than_there_is_room_for(kernels: Kernels, count: int) -> None:
    error = np.zeros(3, np.int64)
    args = {"in0": np.array([count]), "out": at_page_end(np.full(40, -1)), "error": error, "code_n": 3}
    kernels.run(COUNTED, [args[name] for name in COUNTED.params], 0, 1)
    assert (args["out"] == -1).all()
    assert error.tolist() == [3, count, 40]


def test_what_is_refused() -> None:
    x = contiguous((ROWS, 32), F32)
    cells = contiguous((), I64)
    lanes = contiguous((ROWS, 32), BOOL)
    flipped = given(ROWS, 8, moves=FLIP).view
    assert loop_kernel(slab.ReadPrefix(ROWS), [x], x) is None
    assert loop_kernel(quantize.QuantizeRows(32), [x], x) is None
    assert loop_kernel(product.SelectedMatMul(), [lanes, x, contiguous((32, 8), F32)], x) is None
    assert loop_kernel(const.Iota(Operand(0)), [cells], GIVEN_COUNT) is None
    assert loop_kernel(movement.Clone(), [GIVEN_COUNT], GIVEN_COUNT) is None
    assert loop_kernel(movement.Reshape((ROWS, 8)), [flipped], given(8, ROWS, moves=FLIP).view) is None


def test_a_symbol_needs_a_name_that_no_other_argument_has() -> None:
    for name in ("in0", "out", "error", "rows_n"):
        kernel = case(movement.Clone(), Given((SymId(name), 3))).kernel
        with pytest.raises(AssertionError, match=name):
            _ = kernel.params
