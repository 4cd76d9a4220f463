"""Weights for tests of packed forms: encoded rows of any values, packed natively, and products by numpy."""

from __future__ import annotations

import zlib

import numpy as np

from devices.cpu.running import Kernels, aligned, at_page_end
from ostinato.devices.cpu.kernels.pack import Pack
from ostinato.devices.cpu.weights import GROUP, SOURCES, groups
from ostinato.formats.encodings import CODECS, ENCODERS
from ostinato.ir import encoding as e
from ostinato.ir.encoding import Encoding

SCALES = {
    **dict.fromkeys((e.Q4_0, e.Q5_0, e.Q8_0, e.IQ4_NL, e.IQ4_XS, e.IQ2_XXS), (0,)),
    **dict.fromkeys((e.Q4_1, e.Q5_1, e.Q4_K, e.Q5_K), (0, 2)),
    e.Q2_K: (80, 82),
    e.Q3_K: (108,),
    e.Q6_K: (208,),
}
"""Where in a block its float16 scale lies, and its minimum's."""


def encoded(encoding: Encoding, n: int, k: int, seed: int = 0) -> np.ndarray:
    """Rows of normal values, `[n, row bytes]` uint8; without an encoder, random bytes under such scales."""
    rng = np.random.default_rng((seed, n, k, zlib.crc32(encoding.name.encode())))
    if encoding in ENCODERS:
        values = rng.standard_normal((n, k), np.float32)
        return np.ascontiguousarray(ENCODERS[encoding].encode(values))
    raw = rng.integers(0, 256, (n, k // encoding.block, encoding.block_bytes), np.uint8)
    if encoding == e.MXFP4:
        raw[..., 0] = rng.integers(125, 131, raw.shape[:2])  # whose powers of two are near 1
    for at in SCALES.get(encoding, ()):
        raw[..., at : at + 2] = rng.standard_normal(raw.shape[:2]).astype("<f2")[..., None].view(np.uint8)
    return raw.reshape(n, -1)


def decoded(encoding: Encoding, raw: np.ndarray) -> np.ndarray:
    """`[n, k]` float32, by the project's codec, which is tested against another implementation."""
    return CODECS[encoding].decode(raw)


def addresses(raw: np.ndarray, order: np.ndarray | None = None) -> np.ndarray:
    """A packing table: where the rows are, -1 in `order` being a row of zeros, filled up to whole groups."""
    order = np.arange(len(raw)) if order is None else order
    table = np.zeros(groups(len(order)) * GROUP, np.int64)
    table[: len(order)] = np.where(order < 0, 0, raw.ctypes.data + order * raw.strides[0])
    return table


def packed(kernels: Kernels, pack: Pack, raw: np.ndarray, order: np.ndarray | None = None) -> np.ndarray:
    """The packed weight, before a guarded page as its source is."""
    raw = at_page_end(raw)
    table = addresses(raw, order)
    out = at_page_end(np.full(len(table) // GROUP * SOURCES[pack.source].group_bytes(pack.k), 0xA5, np.uint8))
    kernels.run(pack, [table, out], 0, len(table) // GROUP)
    return out


def quantised(x: np.ndarray) -> np.ndarray:
    """What rows stand for after quantisation in blocks of 32, float64: the rule, in numpy float32."""
    (d, q), (d2, q2) = quantised_parts(x)
    return (d.astype(np.float64) * q + d2.astype(np.float64) * q2).reshape(x.shape)


Part = tuple[np.ndarray, np.ndarray]


def quantised_parts(x: np.ndarray) -> tuple[Part, Part]:
    """The scales `[..., blocks, 1]` float32 and quants `[..., blocks, 32]` int8 of rows, and those of what
    is left of blocks that are rounded further; zeros for the others."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    amax = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(all="ignore"):
        inverse = np.float32(127) / amax
        inverse = np.where(np.isfinite(inverse), inverse, np.float32(0))
        d = amax * np.float32(1 / 127)
        q = np.rint(blocks * inverse)
        squares = (d * d)[..., 0]
        sums = [np.zeros(squares.shape[:-1], np.float32) for _ in range(4)]
        for block in range(squares.shape[-1]):
            sums[block % 4] = sums[block % 4] + squares[..., block]
        total = (sums[0] + sums[1]) + (sums[2] + sums[3])
        limit = np.maximum(total * np.float32(1.5 / squares.shape[-1]), np.float32(2.0**-100))
        larger = ((squares >= limit[..., None]) & np.isfinite(total)[..., None])[..., None]
        d2 = np.where(larger, d * np.float32(1 / 254), np.float32(0))
        q2 = np.where(larger, np.rint((blocks - d * q) * (np.float32(254) / d)), np.float32(0))
        return (d, q.astype(np.int8)), (d2, q2.astype(np.int8))


def rows_of(count: int, k: int, seed: int = 0) -> np.ndarray:
    """`[count, k]` float32 of several magnitudes, a block of zeros among them."""
    rng = np.random.default_rng((seed, count, k))
    x = aligned((count, k))
    x[:] = rng.standard_normal((count, k)) * 10.0 ** rng.integers(-3, 3, (count, 1))
    x[-1, : min(32, k)] = 0
    return x
