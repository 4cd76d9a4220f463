"""Pass: weights become what their device packs. Slabs are stored so already: their KV type is noted."""

from __future__ import annotations

from dataclasses import replace

from ostinato.errors.device import NoKernel
from ostinato.ir.ops.const import ConstRole
from ostinato.ir.recipe import PackRecipe
from ostinato.plan.draft import Draft


def choose_layouts(draft: Draft) -> None:
    """Give every weight Const its PackRecipe (a joined one has its names and row order already) and the
    encoding of the packed form.

    Two Consts of the same weight on one device get the same recipe and so share one copy. Raises NoKernel
    for an encoding that the device has no layout for.
    """
    for node, const in draft.consts():
        if const.role is ConstRole.WEIGHT:
            location = draft.placement[node.id]
            layout = draft.topology[location].layout(const.encoding, len(const.shape))
            if layout is None:
                raise NoKernel(
                    f"the weight {const.label!r}", str(const.dtype), str(const.encoding), str(location)
                )
            recipe = replace(const.recipe or PackRecipe((const.label,), ""), layout=layout.name)
            draft.sources[node.id] = const.encoding
            draft.replace_op(node.id, replace(const, encoding=layout.stored, recipe=recipe))
        elif const.role is ConstRole.SLAB:
            kv = draft.topology[draft.placement[node.id]].kv_type(const.encoding)
            if kv is not None:
                draft.sources[node.id] = kv
