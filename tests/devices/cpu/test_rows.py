"""Rows normalised and quantised, against float64 and against the rule in numpy float32."""

from __future__ import annotations

import numpy as np
import pytest

from devices.cpu.running import HOST_ISAS, Kernels, aligned, at_page_end
from devices.cpu.weighing import quantised_parts
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels import quantize
from ostinato.devices.cpu.kernels.norms import Norm
from ostinato.devices.cpu.kernels.rows import BRAIN, INT8, PrepareRows, RowSpec, padded, row_bytes
from ostinato.devices.reference.kernels import quantized, rounded_to_bf16
from ostinato.ir.ops.quantize import Rounding
from sabotage import goes_red

SIZES = [1, 7, 16, 20, 33, 40, 64, 96, 128, 160, 200, 576, 2048]
SPECS = [
    RowSpec(k, norm, eps=1e-5, rounding=rounding)
    for k in SIZES
    for norm in (None, "rms", "layer")
    for rounding in (None, INT8, BRAIN)
] + [RowSpec(k, eps=1e-5, rounding=INT8, sums=True) for k in (7, 160, 200, 576)]
CANARY = 0xA5


@pytest.fixture(scope="module", params=HOST_ISAS, ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    isa: Isa = request.param
    plain = [PrepareRows(spec, x_stride=spec.k + 3) for spec in SPECS]
    values = [
        PrepareRows(spec, x_stride=spec.k, dequantized=True)
        for spec in SPECS
        if spec.rounding and spec.norm is None and not spec.sums
    ]
    return Kernels(isa, plain + values)


def prepared(kernels: Kernels, spec: RowSpec, x: np.ndarray, *norm: np.ndarray) -> np.ndarray:
    """The bytes of all rows, `[rows, row_bytes]`; x is laid before a guarded page."""
    rows = len(x)
    spaced = np.full((rows, spec.k + 3), np.nan, np.float32)
    spaced[:, : spec.k] = x
    guarded = at_page_end(spaced.reshape(-1)[: rows * (spec.k + 3) - 3])
    out = aligned(rows * row_bytes(spec) + 64, np.uint8)
    out[:] = CANARY
    kernel = PrepareRows(spec, x_stride=spec.k + 3)
    kernels.run(kernel, [guarded, *(at_page_end(vector) for vector in norm), out], 0, rows)
    assert (out[rows * row_bytes(spec) :] == CANARY).all(), "wrote past the last row"
    return out[: rows * row_bytes(spec)].reshape(rows, -1)


def operands(spec: RowSpec, seed: int = 0, rows: int = 5) -> tuple[np.ndarray, list[np.ndarray]]:
    random = np.random.default_rng(seed)
    x = random.normal(0.3, 2, (rows, spec.k)).astype(np.float32)
    norm = [random.normal(1, 0.3, spec.k).astype(np.float32) for _ in spec.norm_params]
    return x, norm


def normalised(spec: RowSpec, x: np.ndarray, norm: list[np.ndarray]) -> np.ndarray:
    """In float64."""
    x = x.astype(np.float64)
    if spec.norm == "rms":
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + spec.eps) * norm[0]
    if spec.norm == "layer":
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + spec.eps) * norm[0] + norm[1]
    return x


def quantized_rows(values: np.ndarray, spec: RowSpec) -> np.ndarray:
    """The bytes of quantised rows, by the rule, from float32 `[rows, k]`; CANARY where nothing is written."""
    rows, k = values.shape
    whole = np.zeros((rows, -(-k // 32) * 32), np.float32)
    whole[:, :k] = values
    parts = quantised_parts(whole)
    out = np.full((rows, row_bytes(spec)), CANARY, np.uint8)
    end = padded(k) * 3 // 2
    out[:, :end] = 0
    rests = -(-(end + (padded(k) // 8 if spec.sums else 0)) // 64) * 64
    for row in range(rows):
        (d, q), (d2, q2) = ([values[row] for values in part] for part in parts)
        out[row, : q.size] = q.reshape(-1).view(np.uint8)
        records = out[row, padded(k) : end].view(np.int32).reshape(-1, 4)
        records[: len(d)] = record(d, q)
        if spec.sums:
            sums = np.zeros((padded(k) // 16), np.int16)
            sums[: q.size // 16] = sums_of_16(q)
            out[row, end : end + 2 * len(sums)] = sums.view(np.uint8)
        for turn, block in enumerate(np.flatnonzero(d2)):
            at = rests + 64 * turn
            records[block, 3] = at
            out[row, at : at + 32] = q2[block].view(np.uint8)
            out[row, at + 32 : at + 48] = record(d2[block], q2[block][None])[0].view(np.uint8)
            if spec.sums:
                out[row, at + 48 : at + 52] = sums_of_16(q2[block]).view(np.uint8)
    return out


def record(d: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Of blocks with scales d `[n, 1]` or `[1]` and quants `[n, 32]`: int32 `[n, 4]`, without rests."""
    d, sums = d.reshape(-1), q.sum(-1, dtype=np.int32)
    return np.stack([d.view(np.int32), (d * sums.astype(np.float32)).view(np.int32), -8 * sums, 0 * sums], -1)


def sums_of_16(q: np.ndarray) -> np.ndarray:
    return q.reshape(-1, 16).astype(np.int16).sum(-1, dtype=np.int16)


@pytest.mark.parametrize("spec", [s for s in SPECS if s.rounding is None], ids=repr)
def test_float_rows(kernels: Kernels, spec: RowSpec) -> None:
    x, norm = operands(spec)
    got = prepared(kernels, spec, x, *norm).view(np.float32)
    if spec.norm is None:
        np.testing.assert_array_equal(got, x)
        return
    want = normalised(spec, x, norm)
    scale = np.abs(want) if spec.norm == "rms" else np.abs(want).max()  # a bias may cancel what is centred
    assert (np.abs(got - want) <= 1e-6 * scale).all()


@pytest.mark.parametrize("spec", [s for s in SPECS if s.rounding == BRAIN], ids=repr)
def test_bfloat16_rows_are_the_float_rows_rounded(kernels: Kernels, spec: RowSpec) -> None:
    x, norm = operands(spec)
    floats = prepared(kernels, RowSpec(spec.k, spec.norm, spec.eps), x, *norm).view(np.float32)
    want = np.zeros((len(x), spec.k + spec.k % 2), np.uint16)
    want[:, : spec.k] = rounded_to_bf16(floats).view(np.uint32) >> 16
    np.testing.assert_array_equal(prepared(kernels, spec, x, *norm).view(np.uint16), want)


@pytest.mark.parametrize("spec", [s for s in SPECS if s.rounding == INT8], ids=repr)
def test_quantised_rows_follow_the_rule_bit_for_bit(kernels: Kernels, spec: RowSpec) -> None:
    x, norm = operands(spec)
    floats = prepared(kernels, RowSpec(spec.k, spec.norm, spec.eps), x, *norm).view(np.float32)
    want = quantized_rows(floats, spec)
    np.testing.assert_array_equal(prepared(kernels, spec, x, *norm), want)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_row_has_the_same_bits_alone_and_among_others(kernels: Kernels, spec: RowSpec) -> None:
    x, norm = operands(spec, seed=1)
    together = prepared(kernels, spec, x, *norm)
    for i in range(len(x)):
        np.testing.assert_array_equal(prepared(kernels, spec, x[i : i + 1], *norm)[0], together[i])


def extreme_blocks() -> np.ndarray:
    """Blocks of 32: ties, constants, zeros, a lone largest element, subnormals, the ends of the range."""
    random = np.random.default_rng(2)
    ties = random.integers(-253, 254, 32) / 2.0
    ties[5] = 127.0
    edge = 127.0 / np.float32(3.4e38) * 1.001  # its inverse is just finite
    blocks = [
        ties,
        -ties,
        ties * 2.0**-100,
        np.full(32, 0.1),
        np.full(32, -7.0),
        np.zeros(32),
        np.full(32, -0.0),
        np.eye(32)[3] * 5e-7,
        random.normal(size=32) * 1e-38,
        np.eye(32)[31] * 1e-45,
        random.normal(size=32) * 1e37,
        np.linspace(-1, 1, 32) * 3.4e38,
        np.linspace(-1, 1, 32) * edge,
        np.linspace(-1, 1, 32) * edge * 0.9,
        *random.normal(size=(5, 32)) * 10.0 ** random.integers(-30, 30, (5, 1)),
    ]
    return np.stack(blocks).astype(np.float32)


def test_extreme_blocks(kernels: Kernels) -> None:
    spec = RowSpec(64, eps=1e-5, rounding=INT8)
    blocks = extreme_blocks()
    x = np.concatenate([blocks, blocks[::-1]], -1)
    np.testing.assert_array_equal(prepared(kernels, spec, x), quantized_rows(x, spec))


def test_many_random_blocks(kernels: Kernels) -> None:
    spec = RowSpec(576, eps=1e-5, rounding=INT8)
    random = np.random.default_rng(3)
    x = random.standard_t(3, (300, 576)) * np.exp2(random.integers(-40, 40, (300, 1)))
    x[::3, 64:96] *= 30
    x[1::3].reshape(-1, 18, 32)[:] *= random.integers(1, 9, (100, 18, 1))
    x = x.astype(np.float32)
    assert 0.05 < (quantised_parts(x)[1][0] > 0).mean() < 0.5
    np.testing.assert_array_equal(prepared(kernels, spec, x), quantized_rows(x, spec))


def crowded(count: int, size: float, k: int = 576) -> np.ndarray:
    """A row whose first `count` blocks are all of one size, and the others zeros."""
    x = np.zeros(k, np.float32)
    x[: 32 * count] = np.resize(np.array([1, -0.3, 0.01], np.float32), 32 * count) * size
    return x


def test_the_rests_of_a_row_are_never_more_than_it_has_room_for(kernels: Kernels) -> None:
    """Two thirds of the blocks are the most that can be rounded further: then all others are zeros."""
    spec = RowSpec(576, eps=1e-5, rounding=INT8)
    x = np.stack([crowded(count, 3.0) for count in (11, 12, 13, 18)])
    assert (quantised_parts(x)[1][0] > 0).sum((1, 2)).tolist() == [11, 12, 0, 0]
    np.testing.assert_array_equal(prepared(kernels, spec, x), quantized_rows(x, spec))


def test_rows_so_small_that_their_squares_are_none_have_no_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of their blocks would be at the limit then, more than a row has room for."""
    spec = RowSpec(576, eps=1e-5, rounding=INT8)
    # What a row writes past its end, the next one writes over: the last is an ordinary one.
    x = np.stack([crowded(18, 1e-25), crowded(18, 1e-40), crowded(1, 1.0)])

    def check() -> None:
        kernels = Kernels(HOST_ISAS[0], [PrepareRows(spec, x_stride=spec.k + 3)])
        np.testing.assert_array_equal(prepared(kernels, spec, x), quantized_rows(x, spec))

    goes_red(monkeypatch, quantize, "LEAST", 0.0, check)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_block_and_shows(kernels: Kernels, bad: float) -> None:
    spec = RowSpec(160, eps=1e-5, rounding=INT8)
    x, _ = operands(spec)
    clean = prepared(kernels, spec, x)
    x[:, 40] = bad
    got = prepared(kernels, spec, x)
    k = padded(160)
    records, before = (
        row[:, k : k * 3 // 2].copy().view(np.float32).reshape(-1, k // 32, 4) for row in (got, clean)
    )
    assert (~np.isfinite(records[:, 1, :2])).all()
    others = [0, 2, 3, 4, 5]
    np.testing.assert_array_equal(records[:, others, :3], before[:, others, :3])
    assert (records.view(np.int32)[..., 3] == 0).all(), "such a row has nothing to be rounded further"
    np.testing.assert_array_equal(got[:, 64:k], clean[:, 64:k])
    with np.errstate(invalid="ignore"):
        assert np.isnan(got[:, 32:64].view(np.int8) * records[:, 1, :1]).all()


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("rounding", [None, INT8, BRAIN], ids=str)
def test_a_nan_anywhere_makes_the_normalised_row_nan(
    kernels: Kernels, norm: Norm, rounding: Rounding | None
) -> None:
    spec = RowSpec(200, norm, 1e-5, rounding)
    x, vectors = operands(spec)
    x[2, 199] = np.nan
    got = prepared(kernels, spec, x, *vectors)
    if rounding == INT8:
        records = got[:, 256:384].copy().view(np.float32).reshape(5, 8, 4)
        assert np.isnan(records[2, :7, :2]).all()
        assert np.isfinite(records[[0, 1, 3, 4], :, :2]).all()
    else:
        floats = got.view(np.float32) if rounding is None else got.view(np.uint16).astype(np.uint32) << 16
        assert np.isnan(floats.view(np.float32)).all(-1).tolist() == [False, False, True, False, False]


def dequantised(kernels: Kernels, x: np.ndarray) -> np.ndarray:
    rows, k = x.shape
    spec = RowSpec(k, eps=1e-5, rounding=INT8)
    out = aligned(x.size + 16)
    out[:] = 7
    kernels.run(PrepareRows(spec, x_stride=k, dequantized=True), [at_page_end(x), out], 0, rows)
    assert (out[x.size :] == 7).all()
    return out[: x.size].reshape(x.shape)


@pytest.mark.parametrize("k", [64, 96, 576])
def test_dequantised_rows_are_those_of_the_reference_device(kernels: Kernels, k: int) -> None:
    x = np.random.default_rng(4).normal(size=(7, k)).astype(np.float32)
    np.testing.assert_array_equal(dequantised(kernels, x), quantized(32, x))


def test_dequantised_extreme_blocks(kernels: Kernels) -> None:
    blocks = extreme_blocks()
    x = np.concatenate([blocks, blocks[::-1]], -1)
    with np.errstate(over="ignore", divide="ignore"):
        want = quantized(32, x)
    np.testing.assert_array_equal(dequantised(kernels, x).view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_dequantised_blocks_that_are_not_finite(kernels: Kernels, bad: float) -> None:
    x = np.ones((2, 96), np.float32)
    x[1, 33] = bad
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(dequantised(kernels, x), quantized(32, x))


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_zeros_and_subnormals_are_normalised(kernels: Kernels, norm: str) -> None:
    spec = RowSpec(40, norm, 1e-5)  # type: ignore[arg-type]
    _, vectors = operands(spec)
    x = np.zeros((2, 40), np.float32)
    x[1] = 1e-40
    got = prepared(kernels, spec, x, *vectors).view(np.float32)
    want = normalised(spec, x, vectors)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-43)
