"""Pass: results come home. Each root gets a Copy to the host."""

from __future__ import annotations

from ostinato.ir.location import HOST
from ostinato.ir.ops.movement import Copy
from ostinato.plan.draft import Draft


def prepare(draft: Draft) -> None:
    """Splice the device-to-host Copy at each root; the Copies become the draft's roots, in order."""
    copies = []
    for root in draft.roots:
        copy = draft.add(Copy(HOST), [root])
        draft.placement[copy] = HOST
        copies.append(copy)
    draft.roots = tuple(copies)
