"""Held plans against replanned ones, bit for bit, at every position of a context; captures where granted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from decode.sessionkit import (
    ALONE,
    CAPTURED,
    ENTRIES,
    FRAIL,
    HELD,
    HOMES,
    MODELS,
    WORLDS,
    World,
    micro_llama,
    micro_masked,
    same_bits,
    tokens_of,
    world,
)  # fmt: skip
from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import All, Argmax, Hidden, Last, Rows
from ostinato.device.traits import WritePath
from ostinato.errors import TokenDataMismatch
from ostinato.ir import encoding as enc
from ostinato.models.contract import Model
from ostinato.models.loader import load_model
from pairwise import pairwise

pytestmark = pytest.mark.usefixtures("one_thread")

PIECES = {"prefill, decode": [9] + [1] * 55, "token by token": [1] * 12, "mixed": [23, 1, 1, 5, 1, 1, 32]}


def follow(
    world: World,
    model: Model,
    pieces: list[int],
    path: WritePath | None,
    capacity: int = 64,
    dtype: enc.Encoding = enc.F32,
) -> dict[str, DecodeSlot]:
    """Run `pieces` through all three entry points side by side; they agree at every step."""
    tokens = tokens_of(sum(pieces), seed=3)
    caches = {entry: world.cache(model, capacity, dtype) for entry in ENTRIES}
    slots = {entry: DecodeSlot() for entry in ENTRIES}
    at = 0
    for count in pieces:
        step = tokens[at : at + count]
        expected, held, captured = (
            entry(model, step, caches[entry], world, slots[entry], write_path=path) for entry in ENTRIES
        )
        same_bits(held, expected)
        same_bits(captured, expected)
        at += count
    assert {cache.length for cache in caches.values()} == {at}
    replanned, held_cells, captured_cells = (world.cells(caches[entry]) for entry in ENTRIES)
    for a, b, c in zip(replanned, held_cells, captured_cells, strict=True):
        same_bits(b, a)
        same_bits(c, a)
    return {entry.name: slots[entry] for entry in ENTRIES}


@pairwise("pieces name where path", tuple(PIECES), ("llama", "phi"), WORLDS, tuple(WritePath))
def test_held_and_captured_are_the_replanned_bits(
    name: str, where: str, path: WritePath, pieces: str
) -> None:
    place = world(where)
    slots = follow(place, MODELS[name](), PIECES[pieces], path)
    ones, longer = PIECES[pieces].count(1), len(PIECES[pieces]) - PIECES[pieces].count(1)
    held = slots["held"].statistics
    assert (held.held, held.replanned, held.drops) == (ones + longer, 0, ())
    statistics = slots["captured"].statistics
    assert statistics.replanned == 0
    if len(place.places) > 1:
        assert statistics.captured == 0
        assert statistics.capture_refusal is not None
        first, second = place.places
        assert f"copies from {first} to {second}" in statistics.capture_refusal
    elif path is WritePath.SYMBOLIC:
        assert statistics.captured == 0
        assert statistics.capture_refusal is not None
        assert "symbols" in statistics.capture_refusal
    else:
        assert (statistics.captured, statistics.held) == (ones, longer)
        assert statistics.capture_refusal is None
        assert statistics.captures == 1


@pairwise("name where path", ("windowed", "masked"), WORLDS, tuple(WritePath))
def test_windows_and_masks(name: str, where: str, path: WritePath) -> None:
    follow(world(where), MODELS[name](), [4, *[1] * 20], path)


@pytest.mark.parametrize("where", HOMES)
def test_half_precision_slabs(where: str) -> None:
    follow(world(where), micro_llama(), [4, *[1] * 12], None, dtype=enc.F16)


@pytest.mark.parametrize("where", [where for where in HOMES if where not in ("delayed", "bucketed")])
def test_quantized_slabs(where: str) -> None:
    follow(world(where), micro_llama(), [4, *[1] * 12], None, dtype=enc.Q8_0)


@pairwise("name where path", ("windowed", "masked"), ("reference", "cpu"), tuple(WritePath))
def test_windows_and_masks_over_quantized_slabs(name: str, where: str, path: WritePath) -> None:
    follow(world(where), MODELS[name](), [4, *[1] * 9], path, dtype=enc.Q8_0)


@pairwise(
    "name where path",
    ("tiny-llama-grouped", "tiny-llama-window", "tiny-phi"), ("reference", "cpu"), tuple(WritePath),
)  # fmt: skip
def test_golden_models(fixtures: Path, name: str, where: str, path: WritePath) -> None:
    follow(world(where), load_model(fixtures / f"{name}.gguf"), [20, *[1] * 20], path)


@pytest.mark.parametrize("where", ["delayed", "bucketed"])
@pytest.mark.parametrize("name", ["tiny-llama-grouped", "tiny-llama-llama3", "tiny-phi"])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_delayed_device_passes_the_golden_tests(
    fixtures: Path, name: str, where: str, entry: object
) -> None:
    assert callable(entry)
    model, place = load_model(fixtures / f"{name}.gguf"), world(where)
    golden = np.load(fixtures / f"{name}.npz")
    cache, slot = place.cache(model, 40), DecodeSlot()
    got = []
    for count in [20, 7, *[1] * 13]:
        tokens = [int(token) for token in golden["tokens"][cache.length : cache.length + count]]
        more = {} if count == 1 else {"want": All()}
        got.append(np.atleast_2d(entry(model, tokens, cache, place, slot, **more)))
    np.testing.assert_allclose(np.concatenate(got), golden["logits"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("where", WORLDS)
@pytest.mark.parametrize("path", WritePath)
def test_every_want_of_every_step(where: str, path: WritePath) -> None:
    place, model = world(where), micro_llama()
    for entry in (HELD, CAPTURED):
        cache, slot = place.cache(model), DecodeSlot()
        wants = [Last(), All(), Argmax(), Hidden()]
        for count in (1, 6, 1):
            rows = Rows((count - 1, 0, count - 1))
            for want in [*wants, rows, Rows(())]:
                tokens = tokens_of(count, seed=cache.length)
                expected = place.oracle(model, tokens, cache, want, path)
                got = entry(model, tokens, cache, place, slot, want=want, write_path=path)
                assert type(got) is type(expected)
                same_bits(got, expected)


@pytest.mark.parametrize("where", ["delayed", "bucketed", "cpu", "two cpus", "symbolic cpu"])
def test_long_steps_run_in_chunks(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On devices whose sums have one order, pieces make the same bits as one call."""
    from ostinato.decode import request

    monkeypatch.setattr(request, "CHUNK", 8)
    monkeypatch.setattr(request, "BUCKETS", (3, 8))
    model, tokens = micro_llama(), tokens_of(21)
    place = world(where)
    for want in (Last(), All(), Argmax(), Hidden(), Rows((20, 3, 3, 9)), Rows((0,)), Rows(())):
        cache, slot = place.cache(model, 24), DecodeSlot()
        expected = place.oracle(model, tokens, cache, want)
        same_bits(HELD(model, tokens, cache, place, slot, want=want), expected)
        assert cache.length == 21
        assert set(slot.sessions) <= {3, 8}


@pytest.mark.parametrize("where", FRAIL)
def test_two_requests_in_turn_through_one_slot(where: str) -> None:
    place, model, slot = world(where), micro_llama(), DecodeSlot()
    caches = [place.cache(model), place.cache(model)]
    CAPTURED(model, tokens_of(5), caches[0], place, slot)
    CAPTURED(model, tokens_of(11, 1), caches[1], place, slot)
    for token in range(12):
        cache = caches[token % 2]
        expected = place.oracle(model, [token], cache)
        same_bits(CAPTURED(model, [token], cache, place, slot), expected)
    assert slot.statistics.captured == 12
    assert slot.statistics.drops == ()
    assert slot.statistics.rebinds == 13
    assert slot.statistics.sessions_built == 2


@pytest.mark.parametrize("where", WORLDS)
def test_a_live_mask_is_bound_and_may_not_be_left_out(where: str) -> None:
    place, model = world(where), micro_masked()
    cache, slot = place.cache(model), DecodeSlot()
    HELD(model, tokens_of(4), cache, place, slot)
    HELD(model, [1], cache, place, slot)
    session = slot.session
    assert session is not None
    assert session.step.mask_is_live
    assert session.mask_node in session.optimized.consts
    from dataclasses import replace

    from ostinato.decode.data import token_data

    data = token_data(session.step, model, np.array([2]), cache.length)
    assert data.mask is not None
    before = place.checksum(cache)
    with pytest.raises(TokenDataMismatch, match="mask"):
        session.realize_token(
            session.location, replace(data, mask=None), session.per_token_sym_env(cache.length)
        )
    assert place.checksum(cache) == before
    # the mask is read: closing it changes the logits
    env = session.per_token_sym_env(cache.length)
    opened = session.realize_token(session.location, data, env)
    closed = data.mask.copy()
    closed[0, 1:3] = -np.inf
    other = session.realize_token(session.location, replace(data, mask=closed), env)
    assert np.abs(opened - other).max() > 1e-3
    same_bits(session.realize_token(session.location, data, env), opened)


@pytest.mark.parametrize("where", ALONE)
def test_a_mask_of_a_shipped_family_is_dead(where: str) -> None:
    place, model = world(where), micro_llama()
    cache, slot = place.cache(model), DecodeSlot()
    HELD(model, [1], cache, place, slot)
    session = slot.session
    assert session is not None
    assert session.optimized.dead_data == (session.mask_node,)
    assert session.base_cache.get(session.step.graph.id, session.mask_node) is None


@pytest.mark.parametrize("where", ALONE)
@pytest.mark.parametrize("name", MODELS)
def test_the_oracle_would_notice(name: str, where: str) -> None:
    """Neighbouring positions give clearly other logits, so a binding that is wrong by one can't hide."""
    place, model = world(where), MODELS[name]()
    cache = place.cache(model)
    forward_with_kv_context(model, tokens_of(9), cache, place.context)
    right = place.oracle(model, [5], cache)
    cache.truncate_to(8)
    assert np.abs(right - place.oracle(model, [5], cache)).max() > 1e-2


@pytest.mark.parametrize("path", WritePath)
def test_any_number_of_threads_gives_the_same_bits(path: WritePath) -> None:
    """Whatever shares the work: in a prompt, in tokens, in what is written."""
    model, results = micro_llama(), []
    for threads in (1, 2, 4):
        place = world("cpu", threads=threads)
        cache, slot = place.cache(model), DecodeSlot()
        logits = [
            entry(model, step, cache, place, slot, write_path=path)
            for entry in ENTRIES
            for step in (tokens_of(9, seed=cache.length), [3], [4])
        ]
        results.append((*logits, *place.cells(cache)))
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            same_bits(theirs, mine)
