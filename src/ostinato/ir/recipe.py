"""How weights are packed for a device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackRecipe:
    """One packed weight: which tensors go into it, in which of the device's layouts, in which row order.

    A recipe depends on the model and the device, never on the number of rows in flight, so every plan
    of a model shares it. `permutation` names a row order that the layout pass chose; None is the
    order of the model's definition.
    """

    names: tuple[str, ...]
    layout: str
    permutation: str | None = None

    def __str__(self) -> str:
        order = f", {self.permutation}" if self.permutation else ""
        return f"{self.layout}({' + '.join(self.names)}{order})"
