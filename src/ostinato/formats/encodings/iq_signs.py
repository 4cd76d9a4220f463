"""The signs of the IQ2 and IQ3 encodings: a bit a weight, set for a negative one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def _eights(bits: NDArray[np.uint8]) -> NDArray[np.uint64]:
    signs = 1 - 2 * bits.astype(np.int8)  # [n, 8]
    signs.flags.writeable = False
    return signs.view(np.uint64)[:, 0]


_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")  # [256, 8]

SIGNS = _eights(_BITS)
"""For each byte the eight signs of its bits, lowest first: int8 1 or -1 in memory order, as one number."""

EVEN_SIGNS = _eights(np.column_stack([_BITS[:128, :7], _BITS[:128].sum(axis=1, dtype=np.uint8) & 1]))
"""As SIGNS, for seven bits: the eighth makes the number of negative ones even (`ksigns_iq2xs`)."""


def signed(points: NDArray[np.uint32] | NDArray[np.uint64], signs: NDArray[np.uint64]) -> NDArray[np.int8]:
    """Grid points under their signs, both `[n, …]` rows of the same number of bytes: `[n, bytes]`."""
    rows = len(points)
    return points.view(np.int8).reshape(rows, -1) * signs.view(np.int8).reshape(rows, -1)
