"""A weight as its file holds it, on the way to a device's packed layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.formats.encodings import CODECS, ENCODERS
from ostinato.formats.stamp import Origin
from ostinato.ir.encoding import Encoding


@dataclass(frozen=True, eq=False)
class EncodedTensor:
    """Name, logical shape (row-major), encoding, and the file's bytes.

    `row_order` lists, for each row of the model's definition, the row of the file's tensor that holds it
    (of a vector: each element); None is all of them in order. Blocks never cross rows, so picking and
    reordering rows needs no decoding. `stored` is the file's encoding where it isn't `encoding`: rows are
    then re-encoded when they are asked for, and both have a codec that can. `origin` says where `raw` lies;
    None where nobody asked, or it lies in no file.
    """

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    raw: npt.NDArray[np.uint8]
    row_order: npt.NDArray[np.intp] | None = None
    stored: Encoding | None = None
    origin: Origin | None = None

    def rows(self) -> npt.NDArray[np.uint8]:
        """Encoded rows in the model's order: uint8 `[rows, row_bytes]`; a vector is one row."""
        rows = self._stored_rows()
        if self.stored is None:
            return rows
        return ENCODERS[self.encoding].encode(CODECS[self.stored].decode(rows))

    def _stored_rows(self) -> npt.NDArray[np.uint8]:
        stored = self.stored or self.encoding
        if len(self.shape) == 1:
            if self.row_order is None:
                return self.raw.reshape(1, -1)
            elements = self.raw.reshape(-1, stored.block_bytes)
            ordered: npt.NDArray[Any] = elements[self.row_order].reshape(1, -1)
            return ordered
        rows = self.raw.reshape(-1, stored.row_bytes(self.shape[-1]))
        return rows if self.row_order is None else rows[self.row_order]
