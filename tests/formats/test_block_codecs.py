"""Codecs against the `gguf` package, bit for bit."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import gguf
import numpy as np
import pytest

from ostinato.errors.formats import UnsupportedEncoding
from ostinato.formats.encodings import CODECS, Codec, codec, codec_for, iq_grids
from ostinato.ir import encoding as e

# Where the f16 numbers of a block lie. IQ1_M's only one is in quarters: the top four bits of four uint16.
HALVES = {
    e.Q4_1: (0, 2),
    e.Q5_1: (0, 2),
    e.Q2_K: (80, 82),
    e.Q3_K: (108,),
    e.Q4_K: (0, 2),
    e.Q5_K: (0, 2),
    e.Q6_K: (208,),
    e.TQ1_0: (52,),
    e.TQ2_0: (64,),
    **dict.fromkeys((e.Q4_0, e.Q5_0, e.Q8_0, e.IQ4_NL, e.IQ4_XS, e.IQ1_S), (0,)),
    **dict.fromkeys((e.IQ2_XXS, e.IQ2_XS, e.IQ2_S, e.IQ3_XXS, e.IQ3_S), (0,)),
}
QUARTERS = (49, 51, 53, 55)
# What becomes of normal weights, at most, by way of the encodings that the package can make.
ERRORS = {**dict.fromkeys((e.F32, e.F16, e.BF16), 0.01), e.Q8_0: 0.02, e.Q5_0: 0.15, e.Q5_1: 0.1}
ERRORS |= {e.Q4_0: 0.6, e.Q4_1: 0.3, e.MXFP4: 0.6, e.TQ1_0: 2, e.TQ2_0: 2}
# f16 bit patterns: zeros, smallest and largest subnormal, smallest normal, one, max, infinities, NaNs
CORNERS = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00]
CORNERS += [0x7E00, 0xFE00, 0x7E55, 0x7D01]
encodings = pytest.mark.parametrize("encoding", list(CODECS), ids=str)


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint32)


def reference(raw: np.ndarray, encoding: e.Encoding) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[encoding.name])


def random_rows(encoding: e.Encoding, rows: int, blocks: int) -> np.ndarray:
    rng = np.random.default_rng(rows * 1000 + blocks)
    return rng.integers(0, 256, (rows, blocks * encoding.block_bytes), dtype=np.uint8)


@encodings
# One block; rows in odd numbers; more weights than one chunk of the walk, which ends within a row.
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (3, 7), (41, None)])
def test_random_bytes_decode_to_the_reference_bits(
    encoding: e.Encoding, rows: int, blocks: int | None
) -> None:
    blocks = blocks or 3072 // encoding.block
    raw = random_rows(encoding, rows, blocks)
    decoded = CODECS[encoding].decode(raw)
    assert decoded.dtype == np.float32
    assert decoded.shape == (rows, blocks * encoding.block)
    np.testing.assert_array_equal(bits(decoded), bits(reference(raw, encoding)))


def set_halves(raw: np.ndarray, encoding: e.Encoding, scales: np.ndarray, minimums: np.ndarray) -> None:
    """Sets the f16 bit patterns of blocks `[..., block_bytes]` to `scales` and `minimums`, both `[...]`."""
    if encoding == e.IQ1_M:
        for number, at in enumerate(QUARTERS):
            raw[..., at] = (raw[..., at] & 0x0F) | (scales >> 4 * number & 0x0F) << 4
    for at, halves in zip(HALVES.get(encoding, ()), (scales, minimums), strict=False):
        raw[..., at], raw[..., at + 1] = halves & 0xFF, halves >> 8


@encodings
def test_scale_corners_decode_to_the_reference_bits(encoding: e.Encoding) -> None:
    # Every corner as the scale, beside every corner as the minimum.
    scales, minimums = np.array([(d, m) for d in CORNERS for m in CORNERS]).T
    raw = random_rows(encoding, len(scales), 4)
    blocks = raw.reshape(len(scales), 4, -1)
    if encoding.is_plain:
        blocks.view("<u2")[..., -1] = scales[:, None]
    set_halves(blocks, encoding, scales[:, None], minimums[:, None])
    np.testing.assert_array_equal(bits(CODECS[encoding].decode(raw)), bits(reference(raw, encoding)))


@encodings
def test_every_byte_under_every_kind_of_scale(encoding: e.Encoding) -> None:
    # Uniform blocks, so groups have every scale, and MXFP4 and NVFP4 every shared exponent, as well.
    corners = np.array(CORNERS)
    raw = np.empty((len(corners), 256, encoding.block_bytes), np.uint8)
    raw[...] = np.arange(256, dtype=np.uint8)[:, None]
    set_halves(raw, encoding, corners[:, None], corners[::-1, None])
    raw = raw.reshape(len(corners), -1)
    np.testing.assert_array_equal(bits(CODECS[encoding].decode(raw)), bits(reference(raw, encoding)))


@pytest.mark.parametrize(("encoding", "scale_bytes"), [(e.MXFP4, 1), (e.NVFP4, 4)], ids=str)
def test_every_shared_exponent_over_every_four_bit_float(encoding: e.Encoding, scale_bytes: int) -> None:
    raw = random_rows(encoding, 256, 3).reshape(256, 3, -1)
    raw[..., :scale_bytes] = np.arange(256, dtype=np.uint8)[:, None, None]
    raw[..., scale_bytes : scale_bytes + 8] = np.arange(0, 256, 0x22, dtype=np.uint8)
    raw = raw.reshape(256, -1)
    np.testing.assert_array_equal(bits(CODECS[encoding].decode(raw)), bits(reference(raw, encoding)))


@pytest.mark.parametrize("encoding", ERRORS, ids=str)
def test_quantised_weights_decode_to_the_reference_bits(encoding: e.Encoding) -> None:
    weights = np.random.default_rng(7).standard_normal((5, 256)).astype(np.float32)
    raw = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[encoding.name]).view(np.uint8)
    decoded = CODECS[encoding].decode(raw)
    np.testing.assert_array_equal(bits(decoded), bits(reference(raw, encoding)))
    assert np.abs(decoded - weights).max() < ERRORS[encoding]  # the quants mean what the weights said


def test_all_that_the_package_decodes_has_a_codec() -> None:
    missing = []
    for kind in gguf.GGMLQuantizationType:
        try:
            gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError:
            continue
        if kind.name not in {encoding.name for encoding in CODECS}:
            missing.append(kind.name)
    assert not missing


@pytest.mark.parametrize(
    ("grid", "of"),
    [
        (iq_grids.iq2_xxs, gguf.quants.IQ2_XXS),
        (iq_grids.iq2_xs, gguf.quants.IQ2_XS),
        (iq_grids.iq2_s, gguf.quants.IQ2_S),
        (iq_grids.iq3_xxs, gguf.quants.IQ3_XXS),
        (iq_grids.iq3_s, gguf.quants.IQ3_S),
    ],
    ids=lambda each: each.__name__,
)
def test_grids_are_the_packages(grid: Callable[[], np.ndarray], of: type) -> None:
    of.init_grid()
    np.testing.assert_array_equal(grid().view(np.int8).reshape(of.grid_shape), of.grid.reshape(of.grid_shape))
    assert not grid().flags.writeable


def test_the_ternary_grid_is_the_packages_moved_by_an_eighth_both_ways() -> None:
    gguf.quants.IQ1_S.init_grid()
    wanted = gguf.quants.IQ1_S.grid.reshape(2048, 8)
    up, down = iq_grids.iq1_shifted().view(np.int8).reshape(2, 2048, 8)
    np.testing.assert_array_equal(up / 8, wanted + 0.125)
    np.testing.assert_array_equal(down / 8, wanted - 0.125)


@encodings
def test_out_is_written_and_returned(encoding: e.Encoding) -> None:
    raw = random_rows(encoding, 4, 6).reshape(2, 2, -1)
    out = np.full((2, 2, 6 * encoding.block), 9, np.float32)
    assert CODECS[encoding].decode(raw, out) is out
    np.testing.assert_array_equal(bits(out), bits(CODECS[encoding].decode(raw)))


@encodings
def test_strided_unaligned_and_read_only_bytes_decode_alike(encoding: e.Encoding) -> None:
    raw = random_rows(encoding, 6, 5)
    wanted = bits(CODECS[encoding].decode(raw))
    wide = np.zeros((6, raw.shape[1] + 3), np.uint8)
    wide[:, 3:] = raw
    wide.flags.writeable = False
    np.testing.assert_array_equal(bits(CODECS[encoding].decode(wide[:, 3:])), wanted)
    odd = np.frombuffer(b"\0" + raw.tobytes(), np.uint8)[1:].reshape(raw.shape)
    np.testing.assert_array_equal(bits(CODECS[encoding].decode(odd)), wanted)


@encodings
def test_memory_beside_the_result_does_not_grow_with_the_tensor(encoding: e.Encoding) -> None:
    raw = random_rows(encoding, 8, (1 << 18) // encoding.block)
    out = np.empty((8, 1 << 18), np.float32)  # 8 MB
    CODECS[encoding].decode(raw[:1], out[:1])  # the tables that are made once
    tracemalloc.start()
    try:
        CODECS[encoding].decode(raw, out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_500_000, peak


def test_the_result_never_shares_memory_with_the_bytes() -> None:
    raw = np.zeros((2, 16), np.uint8)
    assert not np.shares_memory(CODECS[e.F32].decode(raw), raw)


@encodings
def test_no_rows_and_no_blocks(encoding: e.Encoding) -> None:
    assert CODECS[encoding].decode(np.zeros((0, encoding.block_bytes), np.uint8)).shape == (0, encoding.block)
    assert CODECS[encoding].decode(np.zeros((3, 0), np.uint8)).shape == (3, 0)


@encodings
def test_what_does_not_fit_is_refused(encoding: e.Encoding) -> None:
    each: Codec = CODECS[encoding]
    raw = random_rows(encoding, 2, 3)
    shape = (2, 3 * encoding.block)
    for wrong in (raw[:, :-1], raw.view(np.int8), np.array(7, np.uint8)):
        with pytest.raises(ValueError, match="whole"):
            each.decode(wrong)
    flat = np.empty(shape[0] * shape[1], np.float32)
    for out in (flat, np.empty(shape, np.float64), np.empty(shape[::-1], np.float32).T):
        with pytest.raises(ValueError, match="C-contiguous"):
            each.decode(raw, out)


def test_asking_for_a_codec_that_is_not_there() -> None:
    assert codec_for(e.Q8_K) is None
    assert codec_for(e.Q8_0) is CODECS[e.Q8_0]
    assert codec(e.Q8_0, tensor="t", file="f") is CODECS[e.Q8_0]
    with pytest.raises(UnsupportedEncoding, match="is stored as Q8_K") as caught:
        codec(e.Q8_K, tensor="output.weight", file="m.gguf")
    assert (caught.value.file, caught.value.tensor, caught.value.encoding) == (
        "m.gguf",
        "output.weight",
        "Q8_K",
    )
    assert "Q8_0" in caught.value.remedy
