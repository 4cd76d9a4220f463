"""Logits read where the device left them."""

from __future__ import annotations

from typing import Protocol

from ostinato.decode.want import F32Array
from ostinato.errors.decode import StaleLogits
from ostinato.ir.shape import NodeId
from ostinato.ir.symbols import SymEnv
from ostinato.runtime.compiled import BoundPlan


class Lender(Protocol):
    """Whoever runs steps, and counts them."""

    @property
    def runs(self) -> int: ...


class BorrowedLogits:
    """A token's logits for a loop that reads them before its next step: they lie in a buffer of the plan that
    the next run writes over (or, where the host can't read the device's memory, in a copy lent on the same
    terms). Each use of `array` asks whether one of the `lenders` has run since.
    """

    __slots__ = ("_array", "_terms")

    def __init__(self, array: F32Array, *lenders: Lender) -> None:
        self._array = array
        self._terms = [(lender, lender.runs) for lender in lenders]

    @property
    def array(self) -> F32Array:
        """float32 `[vocab]`, read-only where it isn't a copy. Raises StaleLogits."""
        self.check()
        return self._array

    def check(self) -> None:
        """Raises StaleLogits once a lender has run again."""
        for lender, run in self._terms:
            if lender.runs != run:
                raise StaleLogits(run, lender.runs)

    def lent_by(self, lender: Lender) -> BorrowedLogits:
        """From here on a run of `lender` ends the loan too."""
        self._terms.append((lender, lender.runs))
        return self


def lend(bound: BoundPlan, root: NodeId, env: SymEnv) -> BorrowedLogits:
    """The one row that the last run of `bound` left for `root`."""
    rows = bound.view(root, env)  # [1, vocab]
    return BorrowedLogits((bound.fetch(root, env) if rows is None else rows)[0], bound)
