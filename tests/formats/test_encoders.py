"""Encoders against the `gguf` package, bit for bit, with values of every kind."""

from __future__ import annotations

import pickle

import gguf
import numpy as np
import pytest

from ostinato.errors.formats import NoEncoder
from ostinato.formats.encodings import CODECS, ENCODERS, encoder, encoder_for
from ostinato.formats.encodings.encoder import reciprocal, settle
from ostinato.ir import encoding as e

F32 = np.float32
TINY, HUGE = np.finfo(F32).smallest_subnormal, np.finfo(F32).max
encodings = pytest.mark.parametrize("encoding", list(ENCODERS), ids=str)
blocked = pytest.mark.parametrize("encoding", [each for each in ENCODERS if not each.is_plain], ids=str)


def reference(values: np.ndarray, encoding: e.Encoding) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[encoding.name]).view(np.uint8)


def assert_reference(values: np.ndarray, encoding: e.Encoding) -> None:
    values = np.asarray(values, F32)
    np.testing.assert_array_equal(ENCODERS[encoding].encode(values), reference(values, encoding))


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


@encodings
# One block; odd numbers of rows; more values than one chunk of the walk, which ends within a row.
@pytest.mark.parametrize("shape", [(32,), (1, 32), (7, 96), (3, 5, 64), (41, 3072)], ids=str)
def test_random_values_encode_to_the_reference_bytes(encoding: e.Encoding, shape: tuple[int, ...]) -> None:
    assert_reference(normal(*shape), encoding)


@encodings
def test_every_magnitude(encoding: e.Encoding) -> None:
    # 2^-149 … 2^125: subnormal values, scales that vanish, reciprocals and scales that overflow
    exponents = np.arange(-149, 126)[:, None]
    assert_reference(np.ldexp(normal(len(exponents), 64), exponents), encoding)
    # values of every magnitude in one block
    assert_reference(
        np.ldexp(np.float32(1), np.random.default_rng(1).integers(-149, 128, (500, 64))), encoding
    )


@encodings
def test_zeros_of_both_signs(encoding: e.Encoding) -> None:
    zeros = np.zeros((4, 32), F32)
    zeros[1] = -0.0
    zeros[2, ::2] = -0.0
    zeros[3, 1::2] = -0.0
    assert_reference(zeros, encoding)


@encodings
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("top", [7, 7.5, 8, 15, 127])
def test_halves(encoding: e.Encoding, sign: int, top: float) -> None:
    # `top` makes the scale a power of two or nearly so: values at k + 1/2 are ties, their neighbours just not
    ties = sign * np.arange(-top, top + 0.25, 0.5).astype(F32)
    values = np.zeros((3 * len(ties), 32), F32)
    values[:, 0] = top
    values[:, 1] = -top  # the same magnitude twice: the first gives Q4_0 its sign
    values[:, 2] = np.concatenate([ties, np.nextafter(ties, F32(0)), np.nextafter(ties, F32(2) * ties)])
    assert_reference(values, encoding)
    values[:, 0] = 0
    assert_reference(values, encoding)


@encodings
def test_values_at_the_ends_of_float16(encoding: e.Encoding) -> None:
    # 65504 is the largest, 65520 the first that rounds to infinity; 2^-24 the smallest, 2^-25 its half
    ends = np.array([65504, 65519.99, 65520, 2**-24, 2**-25, 2**-25 * 1.001, 2**-14, 6.1e-5, HUGE, TINY], F32)
    ends = np.concatenate([ends, -ends])
    for factor in (1, 7, 8, 15, 127):  # the scales themselves come to the ends
        with np.errstate(over="ignore"):
            values = np.repeat(ends[:, None] * F32(factor), 32, axis=1)
        values = np.clip(values, -HUGE, HUGE)
        assert_reference(values, encoding)
        values[:, 1:] = 0
        assert_reference(values, encoding)


@encodings
def test_the_whole_range_in_one_block(encoding: e.Encoding) -> None:
    for ends in ((HUGE, -HUGE), (-HUGE, HUGE), (HUGE, TINY), (-HUGE, 0), (TINY, -TINY), (TINY, 0)):
        assert_reference(np.tile(np.array(ends, F32), (2, 16)), encoding)


@encodings
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, -np.nan], ids=str)
@pytest.mark.parametrize("rest", [0.0, 1.0, -3.5, HUGE, TINY])
def test_what_is_not_finite_gives_the_reference_bytes(encoding: e.Encoding, odd: float, rest: float) -> None:
    values = np.full((34, 32), rest, F32)
    for place in range(32):
        values[place, place] = odd
    values[32] = odd
    values[33, :16] = odd
    assert_reference(values, encoding)


@blocked
def test_a_block_that_holds_something_infinite_decodes_to_nothing_finite(encoding: e.Encoding) -> None:
    values = normal(6, 96)
    odd = [np.inf, -np.inf, np.nan]
    values[:3, 40] = odd
    values[3, 40], values[3, 41] = np.inf, -np.inf
    values[4, 40], values[4, 41] = np.nan, -np.inf
    decoded = CODECS[encoding].decode(ENCODERS[encoding].encode(values))
    assert not np.isfinite(decoded[:5, 32:64]).any()
    # and the blocks beside it are as they were
    alone = CODECS[encoding].decode(ENCODERS[encoding].encode(normal(6, 96)))
    np.testing.assert_array_equal(decoded[:, :32], alone[:, :32])
    np.testing.assert_array_equal(decoded[:, 64:], alone[:, 64:])
    np.testing.assert_array_equal(decoded[5], alone[5])


@encodings
def test_random_bit_patterns(encoding: e.Encoding) -> None:
    patterns = np.random.default_rng(3).integers(0, 1 << 32, (600, 64), dtype=np.uint32).view(F32)
    if (
        not encoding.is_plain
    ):  # of several NaNs in a block, which one the scale is made of is nobody's business
        patterns = np.where(np.isnan(patterns), F32(1), patterns)
    assert_reference(patterns, encoding)


def test_every_bf16_rounds_as_the_reference() -> None:
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        assert_reference((upper | np.uint32(lower)).view(F32)[None], e.BF16)


def test_every_f16_comes_back() -> None:
    raw = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)[None]
    values = CODECS[e.F16].decode(raw)
    encoded = ENCODERS[e.F16].encode(values)
    finite = np.repeat(~np.isnan(values), 2, axis=1)
    np.testing.assert_array_equal(encoded[finite], raw[finite])


@encodings
def test_what_was_encoded_means_what_it_was(encoding: e.Encoding) -> None:
    values = normal(16, 256)
    decoded = CODECS[encoding].decode(ENCODERS[encoding].encode(values))
    span = np.abs(values).max()
    steps = {e.Q8_0: 127, e.Q4_0: 8, e.Q4_1: 7.5, e.BF16: 128, e.F16: 1024, e.F32: np.inf}
    # half a step, a whole one at the end that Q4_0 has not
    assert np.abs(decoded - values).max() <= span / steps[encoding] * 1.01


def test_quants_that_are_no_numbers_are_settled() -> None:
    # Processors differ in what integer they cast these to, so a comparison on one of them cannot tell.
    scale = np.array([[1], [np.inf], [np.nan], [TINY], [0]], F32)
    with np.errstate(all="ignore"):
        inverse = reciprocal(scale)
        quants = np.array([[1, -2, 3]] * 5, F32) * inverse
        quants[1, 0] = quants[3, 1] = np.nan
        settle(quants, scale, inverse)
    np.testing.assert_array_equal(quants, np.array([[1, -2, 3]] + [[0, 0, 0]] * 4, F32))
    assert inverse[4] == 0


@encodings
def test_out_is_written_and_returned(encoding: e.Encoding) -> None:
    values = normal(2, 2, 64)
    out = np.full((2, 2, encoding.row_bytes(64)), 9, np.uint8)
    assert ENCODERS[encoding].encode(values, out) is out
    np.testing.assert_array_equal(out, reference(values, encoding))


@encodings
def test_strided_and_read_only_values_encode_alike_and_stay(encoding: e.Encoding) -> None:
    wide = normal(6, 67)
    wide.flags.writeable = False
    before = wide.copy()
    np.testing.assert_array_equal(
        ENCODERS[encoding].encode(wide[:, 3:]), reference(wide[:, 3:].copy(), encoding)
    )
    np.testing.assert_array_equal(
        ENCODERS[encoding].encode(wide[::2, :64]), reference(wide[::2, :64].copy(), encoding)
    )
    np.testing.assert_array_equal(wide, before)


@encodings
def test_the_result_never_shares_memory_with_the_values(encoding: e.Encoding) -> None:
    values = normal(2, 32)
    assert not np.shares_memory(ENCODERS[encoding].encode(values), values)


@encodings
def test_no_rows_and_no_blocks(encoding: e.Encoding) -> None:
    assert ENCODERS[encoding].encode(np.zeros((0, 32), F32)).shape == (0, encoding.row_bytes(32))
    assert ENCODERS[encoding].encode(np.zeros((3, 0), F32)).shape == (3, 0)


@encodings
def test_what_does_not_fit_is_refused(encoding: e.Encoding) -> None:
    each = ENCODERS[encoding]
    values = normal(2, 64)
    wrong = [values.astype(np.float64), values.view(np.int32), np.array(7, F32)]
    if not encoding.is_plain:
        wrong.append(values[:, :-1])
    for bad in wrong:
        with pytest.raises(ValueError, match="whole"):
            each.encode(bad)
    size = encoding.row_bytes(64)
    for out in (
        np.empty(2 * size, np.uint8),
        np.empty((2, size), np.int8),
        np.empty((size, 2), np.uint8).T,
    ):
        with pytest.raises(ValueError, match="C-contiguous"):
            each.encode(values, out)


def test_asking_for_an_encoder_that_is_not_there() -> None:
    assert encoder_for(e.Q6_K) is None
    assert encoder_for(e.Q8_0) is ENCODERS[e.Q8_0] is CODECS[e.Q8_0]
    assert encoder(e.Q8_0, tensor="t", file="f") is ENCODERS[e.Q8_0]
    with pytest.raises(NoEncoder) as caught:
        encoder(e.Q6_K, tensor="output.weight", file="m.gguf")
    assert (caught.value.file, caught.value.tensor, caught.value.encoding) == (
        "m.gguf",
        "output.weight",
        "Q6_K",
    )
    assert str(caught.value) == "m.gguf: Q6_K, asked for output.weight, has no encoder here"
    assert pickle.loads(pickle.dumps(caught.value)).fields() == caught.value.fields()
