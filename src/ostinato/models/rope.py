"""Rotary embedding tables (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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


def rope_tables(
    specs: Sequence[RopeSpec], start: int, rows: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """cos and sin for positions start … start+rows-1: twice float32 `[n_ropes, rows, rot/2]`."""
    at = np.arange(start, start + rows, dtype=np.float64)
    angles = np.stack([np.multiply.outer(at, spec.frequencies()) for spec in specs])
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
