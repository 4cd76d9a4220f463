"""Pass: weights become what their device packs."""

from __future__ import annotations

from dataclasses import replace

from ostinato.ir.ops.const import ConstRole
from ostinato.ir.recipe import PackRecipe
from ostinato.plan.draft import Draft


def choose_layouts(draft: Draft) -> None:
    """Give every weight Const its PackRecipe and the encoding of the packed form.

    Two Consts of the same weight on one device get the same recipe and so share one copy.
    """
    for node, const in draft.consts():
        if const.role is ConstRole.WEIGHT:
            layout = draft.topology[draft.placement[node.id]].weight_layouts[const.encoding]
            recipe = PackRecipe((const.label,), layout.name)
            draft.replace_op(node.id, replace(const, encoding=layout.stored, recipe=recipe))
