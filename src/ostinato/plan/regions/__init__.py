"""Pass: parts of the graph that a device has one kernel for become one node each; a file a pattern."""

from __future__ import annotations

from ostinato.ir.location import HOST
from ostinato.plan.draft import Draft
from ostinato.plan.regions.attend import ATTEND, match_attend
from ostinato.plan.regions.product import GATED_PRODUCT, PRODUCT, match_gated_product, match_product
from ostinato.plan.regions.scene import Match, Matcher, Scene

PATTERNS: dict[str, Matcher] = {
    ATTEND: match_attend,
    GATED_PRODUCT: match_gated_product,  # before the plain form, which would take its product
    PRODUCT: match_product,
}


def form_regions(draft: Draft) -> None:
    """Replace what matches a pattern of its device's traits. A region has the id of its last node and keeps
    the ops that it replaces; the other nodes that it swallowed leave the draft. Results stay the same.

    Later nodes are tried first, so of two products in one sum the last to run takes the sum.
    """
    patterns = {place: draft.topology[place].regions for place in set(draft.placement.values()) - {HOST}}
    if not any(patterns.values()):
        return
    scene = Scene.of(draft)
    matches: list[Match] = []
    order = draft.topological()
    for pattern, match in PATTERNS.items():
        for node in reversed(order):
            wanted = pattern in patterns.get(draft.placement[node.id], ())
            found = match(scene, node) if wanted and node.id not in scene.held else None
            if found:
                matches.append(found)
                scene.held.update(found.held)
    for found in matches:
        draft.stand_for(found.result, found.region, found.inputs)
        draft.remove(found.held - {found.result})  # its writes too, which would else run twice
    draft.sweep()
