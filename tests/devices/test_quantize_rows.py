"""QuantizeRows against its rule, element by element in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.running import const, run
from ostinato.devices.cpu.device import CpuDevice
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import DTypeMismatch, ShapeMismatch
from ostinato.ir import ConstRole, DType, Graph, SymId
from ostinato.ir.ops.quantize import FURTHER, LEAST, QuantizeRows
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry

DEVICES = Registry()
DEVICES.register(ReferenceDevice())
DEVICES.register(CpuDevice())
CONTEXTS = {kind: InferenceContext(kind, DEVICES) for kind in ("reference", "cpu")}
D127 = np.float32(1.0) / np.float32(127.0)


def half_even(value: Fraction) -> int:
    """Python's `round` of a Fraction is exact, and takes the even one of two."""
    return round(value)


def by_the_rule(row: list[np.float32], block: int) -> list[np.float32]:
    """One row, in scalars: each float32 operation rounded once."""
    blocks = [row[at : at + block] for at in range(0, len(row), block)]
    scales, result = [], []
    for values in blocks:
        amax = max(abs(x) for x in values)
        scales.append(np.float32(amax * np.float32(D127)))
        with np.errstate(over="ignore"):
            inverse = np.float32(127) / amax if amax > 0 else np.float32(0)
        inverse = inverse if np.isfinite(inverse) else np.float32(0)
        for x in values:
            q = half_even(Fraction(float(np.float32(x * inverse))))
            assert -127 <= q <= 127
            result.append(np.float32(scales[-1] * np.float32(q)))
    for b in larger(scales):
        for i in range(b * block, (b + 1) * block):
            rest = np.float32(row[i] - result[i])
            q = half_even(Fraction(float(np.float32(rest * np.float32(np.float32(254) / scales[b])))))
            assert -127 <= q <= 127
            small = np.float32(scales[b] * np.float32(np.float32(1) / np.float32(254)))
            result[i] = np.float32(result[i] + np.float32(small * np.float32(q)))
    return result


def larger(scales: list[np.float32]) -> list[int]:
    """The blocks that are rounded further."""
    with np.errstate(over="ignore", under="ignore"):
        squares = [np.float32(d * d) for d in scales]
        sums = [np.float32(0)] * 4
        for b, square in enumerate(squares):
            sums[b % 4] = np.float32(sums[b % 4] + square)
        total = np.float32(np.float32(sums[0] + sums[1]) + np.float32(sums[2] + sums[3]))
        if not np.isfinite(total):
            return []
        limit = max(np.float32(total * np.float32(FURTHER / len(scales))), np.float32(LEAST))
    return [b for b, square in enumerate(squares) if square >= limit]


def quantized(x: np.ndarray, block: int, kind: str = "reference") -> np.ndarray:
    graph = Graph()
    data = const(graph, x)
    return run(CONTEXTS[kind], data[0].apply(QuantizeRows(block)), data)


def expected(x: np.ndarray, block: int) -> np.ndarray:
    rows = x.reshape(-1, x.shape[-1])
    return np.array([by_the_rule(list(row), block) for row in rows], np.float32).reshape(x.shape)


def same(a: np.ndarray, b: np.ndarray) -> None:
    assert (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes()), (a, b)


LARGEST, TINY = (float(np.float32(x)) for x in (3e38, 1e-40))
VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, 0.5, -1.5, 127.0]),
    st.floats(-LARGEST, LARGEST, width=32),
    st.floats(-TINY, TINY, width=32),  # denormals
)


@settings(max_examples=300)
@given(rows=st.integers(0, 3), blocks=st.integers(1, 6), block=st.sampled_from([1, 2, 8, 32]), data=st.data())
def test_every_element_is_what_the_rule_says(rows: int, blocks: int, block: int, data: st.DataObject) -> None:
    count = rows * blocks * block
    x = np.array(data.draw(st.lists(VALUES, min_size=count, max_size=count)), np.float32)
    x = x.reshape(rows, blocks * block)
    same(quantized(x, block), expected(x, block))


def test_ties_go_to_the_even_integer() -> None:
    x = np.float32([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5])
    got = quantized(x, 8)
    np.testing.assert_array_equal(np.rint(got * 127 / got[0]), [127, 0, 2, 2, 0, -2, -2, 126])
    same(got, expected(x, 8))


def test_zeros_stay_zeros_and_lose_their_sign() -> None:
    """The integer 0 has no sign; a block of zeros has a scale of 0."""
    x = np.float32([0.0, -0.0, -0.0, 0.0, -0.0, 100.0, -0.1, -0.4])
    same(quantized(x, 4)[:6], np.float32([0, 0, 0, 0, 0, 100]))
    assert not np.signbit(quantized(x, 4)[[0, 1, 2, 3, 4]]).any()
    assert not np.signbit(quantized(x, 8)[:7]).any()


def test_denormals_beside_larger_values_vanish_and_don_t_disturb() -> None:
    tiny = np.float32(1e-42)
    x = np.float32([tiny, -tiny, 1.0, -1.0])
    same(quantized(x, 4), expected(x, 4))
    assert quantized(x, 4)[:2].tolist() == [0, 0]


def test_the_largest_of_each_block_sets_its_scale() -> None:
    x = np.float32([[1, 2, 1000, 2000], [-5, 3, 0, 0.1]])
    got = quantized(x, 2)
    half_steps = np.float32([[1 / 127, 1 / 127, 1000 / 127, 1000 / 127], [2.5 / 127] * 2 + [0.05 / 127] * 2])
    assert (np.abs(got - x) <= half_steps * 1.001).all()
    same(got, expected(x, 2))


@pytest.mark.parametrize("kind", CONTEXTS)
def test_where_the_inverse_is_not_finite_everything_is_zero(kind: str) -> None:
    """The least amax with a finite inverse, and the next one below it."""
    least = np.float32(127) / np.finfo(np.float32).max
    with np.errstate(over="ignore"):
        while np.isfinite(np.float32(127) / least):
            least = np.nextafter(least, np.float32(0))
    x = np.linspace(-1, 1, 32, dtype=np.float32) * np.float32([[least], [2e-37], [1e-45], [0]])
    same(quantized(x, 32, kind), np.zeros_like(x))
    x[:, 5] = np.nextafter(least, np.float32(1))
    got = quantized(x, 32, kind)
    assert (got[:, 5] > 0.99 * least).all()
    same(got, expected(x, 32))


@pytest.mark.parametrize("kind", CONTEXTS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_its_block_nan(kind: str, bad: float) -> None:
    x = np.random.default_rng(1).normal(0, 3, (3, 96)).astype(np.float32)
    clean = quantized(x, 32, kind)
    x[1, 40] = bad
    got = quantized(x, 32, kind)
    assert np.isnan(got[1, 32:64]).all()
    got[1, 32:64] = clean[1, 32:64]
    same(got, clean)


@pytest.mark.parametrize("kind", CONTEXTS)
def test_both_devices_round_alike(kind: str) -> None:
    random = np.random.default_rng(2)
    x = random.standard_t(3, (40, 96)) * np.exp2(random.integers(-149, 100, (40, 3))).repeat(32, 1)
    x = x.astype(np.float32)
    same(quantized(x, 32, kind), expected(x, 32))


def test_rows_go_by_themselves() -> None:
    x = np.random.default_rng(0).normal(0, 3, (5, 64)).astype(np.float32)
    whole = quantized(x, 32)
    for at in range(5):
        same(quantized(x[at : at + 1], 32), whole[at : at + 1])


def test_operands_that_don_t_divide_are_refused() -> None:
    graph = Graph()
    rows = SymId("rows")
    for shape in ((rows, 33), (rows,), (), (4, rows)):
        with pytest.raises(ShapeMismatch, match="a multiple of 32"):
            graph.const("x", ConstRole.DATA, shape).apply(QuantizeRows(32))
    with pytest.raises(ShapeMismatch):
        graph.const("x", ConstRole.DATA, (rows, 32)).apply(QuantizeRows(0))
    with pytest.raises(DTypeMismatch):
        graph.const("x", ConstRole.DATA, (rows, 32), DType.F16).apply(QuantizeRows(32))
    assert graph.const("x", ConstRole.DATA, (rows, 64)).apply(QuantizeRows(32)).shape == (rows, 64)
