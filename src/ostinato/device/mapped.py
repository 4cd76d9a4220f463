"""What a device may offer beside its contract: weights that were packed before, where a file has them mapped.

`isinstance(device, MapsWeights)` asks for it. A device that doesn't offer it packs at each start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ostinato.device.contract import HostArray
from ostinato.device.encoded import EncodedTensor
from ostinato.device.storage import Storage
from ostinato.ir.recipe import PackRecipe


@runtime_checkable
class MapsWeights(Protocol):
    @property
    def packing(self) -> str:
        """Names all that packed bytes follow from, beside a recipe and its tensors."""

    def packed_bytes(self, storage: Storage) -> HostArray:
        """What `pack` made, where it lies: uint8 `[nbytes]`."""

    def adopt(self, recipe: PackRecipe, tensors: Sequence[EncodedTensor], data: HostArray) -> Storage:
        """The storage that `pack` would make, over such bytes where they lie: read-only, from the start of a
        page. Reads nothing of the tensors. Raises BindingMismatch where it would have another extent, and
        what `pack` raises for what can't be packed."""
