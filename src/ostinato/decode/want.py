"""What a step hands back."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.errors.decode import InvalidWant, RowOutOfRange


@dataclass(frozen=True, slots=True)
class Last:
    """Logits of the last row: float32 `[vocab]`."""


@dataclass(frozen=True, slots=True)
class All:
    """Logits of every row: float32 `[seq, vocab]`."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Logits of the rows named, in that order: float32 `[len(indices), vocab]`."""

    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hidden:
    """The final normed hidden rows: float32 `[seq, dim]`."""


@dataclass(frozen=True, slots=True)
class Argmax:
    """The most likely token after the last row, the lowest id among equals: int."""


F32Array = npt.NDArray[np.float32]

LogitsWant = Last | All | Rows | Hidden
"""What is handed back as an array."""
Want = LogitsWant | Argmax
Result = F32Array | int
"""What some `Want` is handed."""
LAST = Last()


def wanted(want: Want | type[Last] | type[All] | type[Hidden] | type[Argmax]) -> Want:
    """`want` itself, or made from its class: `want=Last` reads as well as `Last()`. Raises InvalidWant."""
    if isinstance(want, type) and want in (Last, All, Hidden, Argmax):
        return want()
    if not isinstance(want, Want):
        raise InvalidWant(repr(want))
    return want


def out_rows(want: Want, rows: int) -> Sequence[int]:
    """The rows whose logits `want` needs; raises RowOutOfRange."""
    if isinstance(want, All):
        return range(rows)
    if isinstance(want, Rows):
        for row in want.indices:
            if not 0 <= operator.index(row) < rows:
                raise RowOutOfRange(row, rows)
        return want.indices
    return (rows - 1,)


def shaped(want: Want, result: npt.NDArray[Any]) -> Result:
    """What a step's root holds, as `want` promises it."""
    if isinstance(want, Argmax):
        return int(result[0])
    return result[0] if isinstance(want, Last) else result


def picked(want: Want, selected: Sequence[int], result: Result) -> Result:
    """Of the one row that a decode plan makes, the rows that `want` names."""
    return result[list(selected)] if isinstance(want, Rows) and not isinstance(result, int) else result
