"""What every device checks before it packs a weight."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.device.encoded import EncodedTensor
from ostinato.errors.device import NoKernel
from ostinato.errors.graph import BindingMismatch
from ostinato.ir.dtype import DType
from ostinato.ir.location import Location
from ostinato.ir.recipe import PackRecipe


def check_recipe(recipe: PackRecipe, tensors: Sequence[EncodedTensor], location: Location) -> None:
    """Raises BindingMismatch unless `tensors` are those that the recipe names, in its order, with rows of one
    width; NoKernel for a row order that nobody knows: packing in another would be another weight."""
    names = tuple(tensor.name for tensor in tensors)
    if names != recipe.names:
        raise BindingMismatch(str(recipe), "tensors", " + ".join(recipe.names), " + ".join(names))
    widths = {tensor.shape[1:] for tensor in tensors}
    if len(widths) != 1:
        raise BindingMismatch(str(recipe), "tensors", "rows of one width", str(sorted(widths)))
    if not recipe.is_known:
        raise NoKernel(f"the row order {recipe.permutation!r}", str(DType.F32), recipe.layout, str(location))
