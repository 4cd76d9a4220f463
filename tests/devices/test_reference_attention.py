"""Attention against a loop over rows and heads, and what unattended cells may hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from devices.running import const, run, slab
from ostinato.devices.reference import kernels
from ostinato.ir import ConstRole, DType, Graph, Operand, SymId
from ostinato.ir.ops.attention import Attention
from ostinato.runtime.context import InferenceContext
from sabotage import goes_red

HEADS, KV_HEADS, CAPACITY, K_DIM, V_DIM = 6, 2, 16, 8, 4
RNG = np.random.default_rng(1)
CASES = [
    # start, rows, window, masked
    (0, 1, None, False),
    (5, 1, None, False),
    (0, 7, None, False),
    (9, 7, None, False),
    (6, 4, 3, False),
    (0, 9, 1, False),
    (12, 1, 5, False),
    (4, 5, None, True),
    (4, 5, 4, True),
]


def naive(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, start: int, window: int | None, mask: np.ndarray | None
) -> np.ndarray:
    """Row by row, head by head, in float64, over the attended cells alone."""
    out = np.zeros((len(q), HEADS, V_DIM))
    for row in range(len(q)):
        at = start + row
        first = 0 if window is None else max(0, at - window + 1)
        cells = [j for j in range(first, at + 1) if mask is None or mask[row, j] != -math.inf]
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            keys = k[0, group, cells].astype(np.float64)
            scores = keys @ q[row, head].astype(np.float64) / 3.0
            if mask is not None:
                scores += mask[row, cells]
            weights = np.exp(scores - scores.max())
            out[row, head] = weights / weights.sum() @ v[0, group, cells].astype(np.float64)
    return out.reshape(len(q), -1)


def attend(
    context: InferenceContext,
    lengths: str,
    dtype: type,
    case: tuple[int, int, int | None, bool],
    poison: bool,
) -> tuple[np.ndarray, np.ndarray]:
    start, rows, window, masked = case
    rng = np.random.default_rng(2)
    q = rng.standard_normal((rows, HEADS, K_DIM)).astype(np.float32)
    k = rng.standard_normal((1, KV_HEADS, CAPACITY, K_DIM)).astype(dtype)
    v = rng.standard_normal((1, KV_HEADS, CAPACITY, V_DIM)).astype(dtype)
    mask = rng.standard_normal((rows, CAPACITY)).astype(np.float32) if masked else None
    if mask is not None:
        mask[:, [1, start - 1]] = -math.inf
    expected = naive(q, k, v, start, window, mask)
    if poison:
        unattended = list(range(start + rows, CAPACITY))
        if window is not None:
            unattended += range(max(0, start - window + 1))
        if masked:
            unattended += [1, start - 1]
        k[:, :, unattended] = np.nan
        v[:, :, unattended] = np.nan
    graph = Graph()
    n_rows, s, n = SymId("rows"), SymId("s"), SymId("n")
    data: list[tuple[Any, np.ndarray]] = [const(graph, q, n_rows, HEADS, K_DIM)]
    k_slab, v_slab = slab(context, graph, k, "k"), slab(context, graph, v, "v")
    operands = [k_slab, v_slab]
    env: dict[Any, int] = {n_rows: rows}
    op: Attention
    if lengths == "operands":
        data += [const(graph, np.array(x, np.int64)) for x in (start, start + rows)]
        operands += [tensor for tensor, _ in data[1:]]
        op = Attention(Operand(3), Operand(4), 1 / 3.0, window, masked)
    elif lengths == "symbols":
        env |= {s: start, n: start + rows}
        op = Attention(s, n, 1 / 3.0, window, masked)
    else:
        op = Attention(start, start + rows, 1 / 3.0, window, masked)
    if mask is not None:
        data.append(const(graph, mask, n_rows, CAPACITY))
        operands.append(data[-1][0])
    result = data[0][0].apply(op, *operands)
    return run(context, result, *data, slabs={k_slab: k, v_slab: v}, env=env), expected


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("lengths", ["operands", "symbols", "numbers"])
def test_attention_equals_a_loop(
    anywhere: InferenceContext, lengths: str, dtype: type, case: tuple[int, int, int | None, bool]
) -> None:
    got, expected = attend(anywhere, lengths, dtype, case, poison=False)
    np.testing.assert_allclose(got, expected, atol=2e-6)


@pytest.mark.parametrize("case", CASES)
def test_nan_in_unattended_cells_changes_nothing(
    anywhere: InferenceContext, case: tuple[int, int, int | None, bool]
) -> None:
    clean, _ = attend(anywhere, "operands", np.float32, case, poison=False)
    poisoned, _ = attend(anywhere, "operands", np.float32, case, poison=True)
    np.testing.assert_array_equal(clean, poisoned)


def by_rows(context: InferenceContext, q: np.ndarray, k: np.ndarray, v: np.ndarray, **op: Any) -> np.ndarray:
    """Each row as a step of its own, over the cells that were there when it ran."""
    rows = [one_call(context, q[i : i + 1], k, v, start=i, length=i + 1, **op) for i in range(len(q))]
    return np.concatenate(rows)


def one_call(
    context: InferenceContext,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    start: int = 0,
    length: int | None = None,
    window: int | None = None,
) -> np.ndarray:
    graph = Graph()
    data = const(graph, q)
    slabs = [slab(context, graph, k, "k"), slab(context, graph, v, "v")]
    op = Attention(start, length or len(q), 1 / 3.0, window)
    return run(context, data[0].apply(op, *slabs), data, slabs=dict(zip(slabs, (k, v), strict=True)))


SPECIAL = [math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize("window", [None, 3])
def test_what_a_later_row_attends_stays_with_the_rows_that_attend_it(
    anywhere: InferenceContext, which: str, value: float, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the rows come one by one (invariant 13): what isn't attended yet isn't multiplied by 0."""
    rng = np.random.default_rng(3)
    rows, bad = 6, 3
    q = rng.standard_normal((rows, HEADS, K_DIM)).astype(np.float32)
    k = rng.standard_normal((1, KV_HEADS, CAPACITY, K_DIM)).astype(np.float32)
    v = rng.standard_normal((1, KV_HEADS, CAPACITY, V_DIM)).astype(np.float32)
    clean = one_call(anywhere, q, k, v, window=window)
    {"k": k, "v": v}[which][0, 1, bad, 2] = value

    def check() -> None:
        got = one_call(anywhere, q, k, v, window=window)
        meet = [row >= bad and (window is None or row < bad + window) for row in range(rows)]
        for row, meets in enumerate(meet):
            if not meets:
                np.testing.assert_array_equal(got[row], clean[row])
        np.testing.assert_allclose(got, by_rows(anywhere, q, k, v, window=window), atol=1e-6)
        if which == "v":
            seen = got.reshape(rows, HEADS, V_DIM)[meet][:, 3:, 2]  # the heads of group 1
            np.testing.assert_array_equal(seen, np.full_like(seen, value))
            assert np.isfinite(np.delete(got.reshape(rows, HEADS, V_DIM), 2, axis=2)).all()

    check()
    if which == "v" and anywhere.location.kind == "reference":
        goes_red(monkeypatch, kernels, "selected_product", lambda lanes, weights, v: weights @ v, check)


def test_infinities_of_both_signs_and_weights_of_zero() -> None:
    inf, nan = math.inf, math.nan
    values = np.float32([[inf, inf, 1.0, nan], [-inf, 1.0, 2.0, 1.0], [5.0, 6.0, 7.0, 8.0]])
    weights = np.float32([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    lanes = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 0], [0, 1, 1]], bool)
    expected = [
        [nan, inf, 1.5, nan],
        [nan, nan, 2.0, nan],  # attended with a weight that rounds to 0: 0 · inf
        [inf, inf, 1.0, nan],
        [-inf, 3.5, 4.5, 4.5],
    ]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(kernels.selected_product(lanes, weights, values), np.float32(expected))


def test_attended_cells_cost_not_the_capacity(context: InferenceContext) -> None:
    """Only the prefix is read: a slab whose unattended part is not even there would do."""
    graph = Graph()
    op = Attention(Operand(3), Operand(4), 1.0)
    q = graph.const("q", ConstRole.DATA, (1, HEADS, K_DIM))
    slab = graph.const("k", ConstRole.SLAB, (1, KV_HEADS, CAPACITY, K_DIM))
    start, length = (graph.const(name, ConstRole.DATA, (), DType.I64) for name in "sn")
    inside = len(graph)
    op.decompose(q, slab, slab, start, length)
    wide = [node for node in list(graph)[inside:] if CAPACITY in node.shape]
    assert not wide
