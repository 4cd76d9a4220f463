"""How weights are packed for a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ostinato.errors.graph import BindingMismatch

_INTERLEAVE = "interleave:"


def interleave(width: int) -> str:
    """The row order that takes `width` rows of each tensor in turn; all have as many, a multiple of it."""
    return f"{_INTERLEAVE}{width}"


@dataclass(frozen=True, slots=True)
class PackRecipe:
    """One packed weight: which tensors go into it, in which of the device's layouts, in which row order.

    A recipe depends on the model and the device, never on the number of rows in flight, so every plan
    of a model shares it. `permutation` names a row order that the layout pass chose; None is one tensor's
    rows after another's, each in the order of the model's definition. A row of a vector is an element.
    """

    names: tuple[str, ...]
    layout: str
    permutation: str | None = None

    @property
    def interleaved(self) -> int | None:
        """The width of an `interleave` permutation; None for any other order."""
        width = (self.permutation or "").removeprefix(_INTERLEAVE)
        known = width.isascii() and width.isdecimal() and int(width) > 0
        return int(width) if known and self.permutation == interleave(int(width)) else None

    @property
    def is_known(self) -> bool:
        """Whether the permutation is one that `row_order` gives."""
        return self.permutation is None or self.interleaved is not None

    def row_order(self, rows: Sequence[int]) -> npt.NDArray[np.intp]:
        """For each packed row, its index among the rows of all tensors one after another; `rows` are the
        tensors' own counts. The permutation `is_known`. Raises BindingMismatch for counts that it
        can't order."""
        order = np.arange(sum(rows))
        width = self.interleaved
        if width is None:
            return order
        if len(set(rows)) != 1 or rows[0] % width:
            counts = " and ".join(map(str, rows))
            raise BindingMismatch(str(self), "rows", f"equal multiples of {width}", counts)
        return order.reshape(len(rows), -1, width).swapaxes(0, 1).reshape(-1)

    def __str__(self) -> str:
        order = f", {self.permutation}" if self.permutation else ""
        return f"{self.layout}({' + '.join(self.names)}{order})"
