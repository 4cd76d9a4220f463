"""A weight as its file holds it, on the way to a device's packed layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.ir.encoding import Encoding


@dataclass(frozen=True, eq=False)
class EncodedTensor:
    """Name, logical shape (row-major), encoding, and the file's bytes.

    `row_order` lists, for each row of the model's definition, the row of the file's tensor that holds it
    (of a vector: each element); None is all of them in order. Blocks never cross rows, so picking and
    reordering rows needs no decoding.
    """

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    raw: npt.NDArray[np.uint8]
    row_order: npt.NDArray[np.intp] | None = None

    @property
    def row_bytes(self) -> int:
        return self.encoding.row_bytes(self.shape[-1])

    def rows(self) -> npt.NDArray[np.uint8]:
        """Encoded rows in the model's order: uint8 `[rows, row_bytes]`; a vector counts as one row unless it
        is reordered."""
        if self.row_order is not None and len(self.shape) == 1:
            elements = self.raw.reshape(-1, self.encoding.block_bytes)
            ordered: npt.NDArray[Any] = elements[self.row_order].reshape(1, -1)
            return ordered
        rows = self.raw.reshape(-1, self.row_bytes)
        return rows if self.row_order is None else rows[self.row_order]
