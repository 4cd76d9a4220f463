"""How much is done once, and how little for every token."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple
from types import FrameType
from typing import Any

import pytest

from decode.sessionkit import (
    ALONE,
    CAPTURED,
    HELD,
    MODELS,
    WORLDS,
    Entry,
    World,
    micro_llama,
    same_bits,
    tokens_of,
    world,
)  # fmt: skip
from ostinato.decode.slot import DecodeSlot
from ostinato.device.traits import WritePath
from ostinato.models.contract import Model
from pairwise import pairwise

pytestmark = pytest.mark.usefixtures("one_thread")


def request(place: World, model: Model, entry: Entry, slot: DecodeSlot, seed: int, path: WritePath) -> None:
    """A prompt and five tokens over a fresh cache, each step its own replan's bits."""
    cache = place.cache(model, 24)
    for step in (tokens_of(2 + seed % 4, seed), *([token] for token in tokens_of(5, seed + 100))):
        expected = place.oracle(model, step, cache, path=path)
        same_bits(entry(model, step, cache, place, slot, write_path=path), expected)


def check_plans_are_made_once(where: str, entry: Entry, path: WritePath) -> None:
    place, model, slot = world(where), micro_llama(), DecodeSlot()
    request(place, model, entry, slot, 0, path)
    assert place.plans == 2  # one for the prompt, one for all the tokens
    nodes = {rows: session.graph_node_count for rows, session in slot.sessions.items()}
    sessions = dict(slot.sessions)
    for seed in range(1, 11):
        request(place, model, entry, slot, seed, path)
    assert place.plans == 2
    assert {rows: session.graph_node_count for rows, session in slot.sessions.items()} == nodes
    if (
        len(place.places) == 1
    ):  # slabs on two devices can't prove where they are: bound anew, planned once still
        assert slot.sessions == sessions
        assert slot.statistics.rebinds == 10
        assert slot.statistics.drops == ()


@pairwise("entry where path", (HELD, CAPTURED), WORLDS, tuple(WritePath))
def test_ten_more_requests_plan_nothing(where: str, entry: Entry, path: WritePath) -> None:
    check_plans_are_made_once(where, entry, path)


def test_a_replanning_loop_plans_every_step() -> None:
    """What the counts above are compared with."""
    place, model = world("reference"), micro_llama()
    cache = place.cache(model)
    from ostinato.decode.forward import forward_with_kv_context

    for token in range(5):
        forward_with_kv_context(model, [token], cache, place.context)
    assert place.plans == 5


def calls_of(run: Callable[[], object]) -> Counter[str]:
    """Function calls, Python's and C's, by name."""
    seen: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            seen[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            seen[f"c {argument.__qualname__}"] += 1

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return seen


def check_flat(where: str, entry: Entry, name: str, path: WritePath) -> None:
    place, model, slot = world(where), MODELS[name](), DecodeSlot()
    cache = place.cache(model, 4200)
    place.fill(cache, 4100)
    seen = []
    for length in (4096, 512, 64):
        cache.truncate_to(length)
        for token in (1, 2):  # plans, bindings and numpy's own first times
            entry(model, [token], cache, place, slot, write_path=path)
        session = slot.session
        assert session is not None
        before, nodes = astuple(place.context.counters.mine), session.graph_node_count
        calls = calls_of(lambda: entry(model, [3], cache, place, slot, write_path=path))
        after = astuple(place.context.counters.mine)
        counts = [b - a for a, b in zip(before, after, strict=True)]
        assert session.graph_node_count == nodes
        seen.append((calls, counts, nodes, dict(slot.sessions)))
        expected = place.oracle(model, [5], cache, path=path)
        same_bits(entry(model, [5], cache, place, slot, write_path=path), expected)
    for other in seen[1:]:
        assert other == seen[0]
    optimized, realized, bound, uploaded = seen[0][1]
    assert (optimized, realized, bound) == (0, 1, 0)
    assert uploaded == 8 + 4 * model.config.ropes[0].rot + (8 if path is WritePath.DEVICE_OFFSET else 0)


@pairwise("entry where name path", (HELD, CAPTURED), ALONE, ("llama", "phi"), tuple(WritePath))
def test_a_token_costs_the_same_at_every_length(where: str, entry: Entry, name: str, path: WritePath) -> None:
    check_flat(where, entry, name, path)
