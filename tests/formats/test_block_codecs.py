"""Codecs against the `gguf` package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ostinato.errors.formats import UnsupportedEncoding
from ostinato.formats.encodings import CODECS, Codec, codec, codec_for
from ostinato.ir import encoding as e

SCALED = (e.Q4_0, e.Q4_1, e.Q8_0)
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
# One block; rows in odd numbers; more blocks than one chunk of the walk.
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (3, 7), (41, 1800)])
def test_random_bytes_decode_to_the_reference_bits(encoding: e.Encoding, rows: int, blocks: int) -> None:
    raw = random_rows(encoding, rows, blocks)
    decoded = CODECS[encoding].decode(raw)
    assert decoded.dtype == np.float32
    assert decoded.shape == (rows, blocks * encoding.block)
    np.testing.assert_array_equal(bits(decoded), bits(reference(raw, encoding)))


@encodings
def test_scale_corners_decode_to_the_reference_bits(encoding: e.Encoding) -> None:
    # Every corner as the scale, beside every corner as the minimum (the first quants where there is none).
    pairs = np.array([(d, m) for d in CORNERS for m in CORNERS], "<u2").view(np.uint8).reshape(-1, 4)
    raw = random_rows(encoding, len(pairs), 4)
    head = min(encoding.block_bytes, 4)
    raw[:, :head] = pairs[:, :head]
    raw[:, -encoding.block_bytes :][:, :head] = pairs[:, :head]
    np.testing.assert_array_equal(bits(CODECS[encoding].decode(raw)), bits(reference(raw, encoding)))


@pytest.mark.parametrize("encoding", SCALED, ids=str)
def test_every_quant_under_every_kind_of_scale(encoding: e.Encoding) -> None:
    raw = np.zeros((len(CORNERS), 256, encoding.block_bytes), np.uint8)
    raw[..., :2] = np.array(CORNERS, "<u2").view(np.uint8).reshape(-1, 1, 2)
    raw[..., encoding.block_bytes - 16 :] = np.arange(256, dtype=np.uint8)[:, None]
    raw = raw.reshape(len(CORNERS), -1)
    np.testing.assert_array_equal(bits(CODECS[encoding].decode(raw)), bits(reference(raw, encoding)))


@encodings
def test_quantised_weights_decode_to_the_reference_bits(encoding: e.Encoding) -> None:
    weights = np.random.default_rng(7).standard_normal((5, 256)).astype(np.float32)
    raw = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[encoding.name]).view(np.uint8)
    decoded = CODECS[encoding].decode(raw)
    np.testing.assert_array_equal(bits(decoded), bits(reference(raw, encoding)))
    assert np.abs(decoded - weights).max() < 0.6  # the quants mean what the weights said


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
    assert codec_for(e.Q6_K) is None
    assert codec_for(e.Q8_0) is CODECS[e.Q8_0]
    assert codec(e.Q8_0, tensor="t", file="f") is CODECS[e.Q8_0]
    with pytest.raises(UnsupportedEncoding, match="is stored as Q6_K") as caught:
        codec(e.Q6_K, tensor="output.weight", file="m.gguf")
    assert (caught.value.file, caught.value.tensor, caught.value.encoding) == (
        "m.gguf",
        "output.weight",
        "Q6_K",
    )
    assert "Q8_0" in caught.value.remedy
