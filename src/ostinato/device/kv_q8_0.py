"""Keys and values kept as Q8_0: the rule by which every device rounds them, and numpy's way to follow it.

The elements of one position's row, 32 at a time (the last block may have fewer), all in float32 and rounded
to nearest even:

    amax = max |x|
    d    = float16(amax / 127)                          the scale, rounded before it is used
    inv  = float32(1) / d, or 0 where d is 0, infinite or NaN
    q    = x · inv rounded to an integer, half to even, -127 … 127

A row is stored as q and d, and reads as d · q, which float32 holds exactly. So a position's cells depend on
that position alone, whatever is written beside it. Blocks whose largest number is below about 3.8e-6 read as
zeros; one with a NaN, an infinity or a number beyond 8.3e6 reads as NaN.

The blocks are those of ggml (int8 with scales in float16), the rounding isn't: ggml divides by the scale as
it was before that was rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.ir.encoding import Q8_0

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int8]
Scales = npt.NDArray[np.float16]


def blocks(elements: int) -> int:
    """Blocks of a row."""
    return -(-elements // Q8_0.block)


def quantize(x: npt.NDArray[Any]) -> tuple[Integers, Scales]:
    """x `[..., n]` → q `[..., blocks · 32]`, zeros past n, and d `[..., blocks]`."""
    count = blocks(x.shape[-1])
    rows: Floats = np.zeros((*x.shape[:-1], count * Q8_0.block), np.float32)
    rows[..., : x.shape[-1]] = x
    rows = rows.reshape(*x.shape[:-1], count, Q8_0.block)
    with np.errstate(all="ignore"):
        d = (np.abs(rows).max(-1) / np.float32(127)).astype(np.float16)
        wide = d.astype(np.float32)
        usable = np.isfinite(wide) & (wide > 0)
        inverse = np.where(usable, np.float32(1) / wide, np.float32(0))[..., np.newaxis]
        q = np.where(usable[..., np.newaxis], np.rint(rows * inverse), 0)
    return np.clip(q, -127, 127).astype(np.int8).reshape(*x.shape[:-1], -1), d


def dequantize(q: Integers, d: Scales, elements: int) -> Floats:
    """d · q: `[..., elements]`."""
    rows = q.reshape(*d.shape, Q8_0.block).astype(np.float32)
    with np.errstate(invalid="ignore"):  # an infinite scale of zeros
        rows *= d.astype(np.float32)[..., np.newaxis]
    return rows.reshape(*d.shape[:-1], -1)[..., :elements]
