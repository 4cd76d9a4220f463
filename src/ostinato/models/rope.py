"""Rotary embedding tables (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

F32Array = npt.NDArray[np.float32]

BLOCK = 64
"""Positions whose rows are made at once, and kept."""
KEPT = 256
"""Blocks that a table keeps: 8 MiB where all of 128 elements are rotated."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """The angle of pair i at position p is p · base^(-2i/rot) / (linear · factors[i]).

    `rot` elements of each head are rotated. `linear` stretches all positions alike ("linear" scaling);
    `factors`, one a pair, stretch each frequency on its own ("llama3" scaling arrives as factors).
    """

    base: float
    rot: int
    linear: float = 1.0
    factors: tuple[float, ...] = ()

    def frequencies(self) -> npt.NDArray[np.float64]:
        """Radians per position: `[rot/2]`."""
        pairs = np.arange(0, self.rot, 2, dtype=np.float64)
        scale = np.asarray(self.factors or (1.0,), np.float64) * self.linear
        return 1.0 / (self.base ** (pairs / self.rot) * scale)


class RopeTable:
    """The rows of some ropes, all of one width: made by the block, read-only, the last ones kept. Every step
    takes its rows here, so they have the same bits however many are asked for. Thread-safe."""

    def __init__(self, specs: Sequence[RopeSpec]) -> None:
        frequencies = np.stack([spec.frequencies() for spec in specs])  # [n_ropes, rot/2]
        self._block = lru_cache(maxsize=KEPT)(partial(_block, frequencies))

    def rows(self, start: int, count: int) -> tuple[F32Array, F32Array]:
        """cos and sin of positions start … start+count-1: twice `[n_ropes, count, rot/2]`, not to be written
        to; the one row of a token is contiguous."""
        if count == 1:
            number, row = divmod(start, BLOCK)
            cos, sin = self._block(number)
            return cos[row], sin[row]
        first = start // BLOCK
        blocks = [self._block(number) for number in range(first, -(-(start + count) // BLOCK))]
        skipped = start - first * BLOCK
        cos, sin = (
            np.concatenate(parts)[skipped : skipped + count, :, 0].transpose(1, 0, 2)
            for parts in zip(*blocks, strict=True)
        )
        return cos, sin


def _block(frequencies: npt.NDArray[np.float64], number: int) -> tuple[F32Array, F32Array]:
    """cos and sin of BLOCK positions from number · BLOCK on: twice `[BLOCK, n_ropes, 1, rot/2]`."""
    at = np.arange(number * BLOCK, (number + 1) * BLOCK, dtype=np.float64)
    angles = np.multiply.outer(at, frequencies[:, None])
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    cos.flags.writeable = sin.flags.writeable = False
    return cos, sin


@lru_cache(maxsize=16)
def rope_table(specs: tuple[RopeSpec, ...]) -> RopeTable:
    """The one table of these ropes."""
    return RopeTable(specs)
