"""Views: what numpy's strides say, for chains of moving ops over random shapes, with and without symbols."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.cpu.loopcases import COLS, ROWS, extents, places
from ostinato.devices.cpu.views import (
    View,
    broadcast_to,
    contiguous,
    is_contiguous,
    moved,
    plus,
    reshaped,
    times,
)
from ostinato.ir import DType
from ostinato.ir.op import Op
from ostinato.ir.ops import elementwise, movement
from ostinato.ir.shape import Shape


def divided(draw: st.DrawFn, total: int) -> tuple[int, ...]:
    """A shape of `total` elements."""
    parts = []
    rest = total
    while rest > 1 and len(parts) < 4:
        part = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
        parts.append(part)
        rest //= part
    return tuple(draw(st.permutations([*parts, rest] if rest != 1 or not parts else parts)))


@st.composite
def moving_op(draw: st.DrawFn, shape: tuple[int, ...]) -> Op:
    kinds = ["reshape", "transpose", "unsqueeze"]
    if 1 in shape:
        kinds.append("squeeze")
    if any(shape):
        kinds.append("slice")
    kind = draw(st.sampled_from(kinds))
    if kind == "reshape":
        total = prod(shape)
        return movement.Reshape(divided(draw, total) if total else tuple(draw(st.permutations(shape))))
    if kind == "transpose":
        return movement.Transpose(tuple(draw(st.permutations(range(len(shape))))))
    if kind == "unsqueeze":
        return movement.Unsqueeze(draw(st.integers(0, len(shape))))
    if kind == "squeeze":
        return movement.Squeeze(draw(st.sampled_from([a for a, extent in enumerate(shape) if extent == 1])))
    axis = draw(st.sampled_from([a for a, extent in enumerate(shape) if extent]))
    start = draw(st.integers(0, shape[axis] - 1))
    stop = draw(st.integers(start + 1, shape[axis]))
    return movement.Slice(axis - draw(st.sampled_from([0, len(shape)])), start, stop)


def with_numpy(op: Op, array: np.ndarray) -> np.ndarray:
    match op:
        case movement.Reshape():
            return array.reshape(op.shape)
        case movement.Transpose():
            return array.transpose(op.order)
        case movement.Unsqueeze():
            return np.expand_dims(array, op.axis)
        case movement.Squeeze():
            return array.squeeze(op.axis)
        case movement.Slice():
            return array[(slice(None),) * (op.axis % array.ndim) + (slice(op.start, op.stop),)]
    raise AssertionError(op)


@given(st.data())
def test_chains_see_what_numpy_sees(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 6]), max_size=4)))
    array = buffer = np.arange(max(1, prod(shape)), dtype=np.int64)
    array = buffer[: prod(shape)].reshape(shape)
    view = contiguous(shape, DType.I64)
    assert is_contiguous(view)
    for _ in range(data.draw(st.integers(1, 6))):
        op = data.draw(moving_op(array.shape))
        result = with_numpy(op, array)
        after = moved(op, view)
        if after is None:  # only where numpy copies as well
            assert isinstance(op, movement.Reshape)
            assert not np.shares_memory(result, array)
            assert moved(op, contiguous(view.shape, DType.I64)) is not None
            return
        assert after.shape == result.shape
        np.testing.assert_array_equal(buffer[places(after, {})], result)
        assert is_contiguous(after) == result.flags.c_contiguous
        array, view = result, after


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("cols", [1, 3])
@pytest.mark.parametrize(
    ("shape", "ops"),
    [
        ((ROWS, 12), [movement.Reshape((ROWS, 3, 4)), movement.Transpose((1, 0, 2))]),
        ((ROWS, 12), [movement.Reshape((3, ROWS, 4)), movement.Transpose((1, 0, 2))]),
        ((2, ROWS, 3), [movement.Reshape((ROWS, 6)), movement.Reshape((6, ROWS)), movement.Slice(0, 2, 5)]),
        ((2, ROWS, 3), [movement.Slice(0, 1, 2), movement.Squeeze(0), movement.Transpose((1, 0))]),
        ((4, ROWS, 3), [movement.Slice(0, 1, 4), movement.Slice(0, 1, 3)]),
        ((2, ROWS, COLS), [movement.Transpose((2, 0, 1)), movement.Unsqueeze(1)]),
        ((2, ROWS, COLS, 3), [movement.Slice(0, 1, 2), movement.Reshape((COLS, 3, ROWS))]),
        ((ROWS, 4), [movement.Slice(1, 1, 3), movement.Reshape((ROWS, 1, 2))]),
        ((ROWS, 4), [movement.Transpose((1, 0)), movement.Reshape((2, 2, ROWS))]),
    ],
)
def test_symbols_stay_symbols(shape: Shape, ops: list[Op], rows: int, cols: int) -> None:
    values = {ROWS: rows, COLS: cols}
    buffer = np.arange(prod(extents(shape, values)))
    array, view = buffer.reshape(extents(shape, values)), contiguous(shape, DType.I64)
    for op in ops:
        after = moved(op, view)
        assert after is not None
        concrete = movement.Reshape(extents(op.shape, values)) if isinstance(op, movement.Reshape) else op
        array, view = with_numpy(concrete, array), after
        np.testing.assert_array_equal(buffer[places(view, values)], array)


@pytest.mark.parametrize(
    ("view", "op"),
    [
        (moved(movement.Transpose((1, 0)), contiguous((ROWS, 4), DType.F32)), movement.Reshape((ROWS, 4))),
        (moved(movement.Slice(1, 0, 2), contiguous((ROWS, 4), DType.F32)), movement.Reshape((2, ROWS))),
        (
            moved(movement.Slice(0, 1, 2), contiguous((4, ROWS, 3), DType.F32)),
            movement.Slice(2, 1, 2),
        ),  # the offset would be 3·rows + 1
        (contiguous((3, 4), DType.F32), movement.Clone()),
        (contiguous((3, 4), DType.F32), elementwise.Neg()),
    ],
)
def test_what_needs_a_copy_is_no_view(view: View | None, op: Op) -> None:
    assert view is not None
    assert moved(op, view) is None


def test_strides_are_numbers_times_symbols() -> None:
    assert contiguous((2, ROWS, 3), DType.F32).strides == ((3, ROWS), 3, 1)
    assert contiguous((ROWS, 3), DType.F32).strides == (3, 1)
    assert times(2, ROWS, (3, COLS)) == (6, COLS, ROWS) == times(COLS, 6, ROWS)
    assert times(0, ROWS) == 0
    assert plus((2, ROWS), (3, ROWS)) == (5, ROWS)
    assert plus(0, (3, ROWS)) == (3, ROWS)
    assert plus((3, ROWS), 1) is None
    assert not is_contiguous(moved(movement.Transpose((1, 0)), contiguous((ROWS, 3), DType.F32)))  # type: ignore[arg-type]


def test_broadcasting_repeats_by_strides_of_zero() -> None:
    buffer = np.arange(6.0)
    view = broadcast_to(contiguous((3, 1), DType.F32), (ROWS, 3, 4))
    assert view.strides == (0, 1, 0)
    np.testing.assert_array_equal(
        buffer[places(view, {ROWS: 2})], np.broadcast_to(buffer[:3, None], (2, 3, 4))
    )
    merged = reshaped(broadcast_to(contiguous((), DType.F32), (2, 3)), (6,))
    assert merged is not None
    assert merged.strides == (0,)
