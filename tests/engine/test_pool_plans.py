"""The slot pool: requests one after another and at once, over plans made once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from threadpoolctl import threadpool_limits

from decode.sessionkit import (
    CAPTURED,
    FRAIL,
    HELD,
    Entry,
    World,
    micro_llama,
    micro_phi,
    same_bits,
    tokens_of,
    world,
)
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import Last
from ostinato.engine.pool import PlanMode, SlotPool, run_step
from ostinato.errors import SlotBusy
from ostinato.models.contract import Model

TOGETHER = 8


def answer(
    place: World, model: Model, pool: SlotPool, entry: Entry, seed: int, gate: threading.Barrier | None = None
) -> int:
    """One request; every step its own replan's bits. Returns the steps compared."""
    cache, compared = place.cache(model, 24), 0
    with pool.lease() as slot:
        for step in (tokens_of(1 + seed, seed), *([token] for token in tokens_of(5, seed))):
            if gate is not None:
                gate.wait(timeout=30)
            expected = place.oracle(model, step, cache)
            same_bits(entry(model, step, cache, place, slot), expected)
            compared += 1
    return compared


@pytest.mark.parametrize(
    ("where", "entry"),
    [
        ("reference", HELD),
        ("reference", CAPTURED),
        ("delayed", CAPTURED),
        ("bucketed", HELD),
        ("split", HELD),
        ("cpu", HELD),
        ("cpu", CAPTURED),
        ("symbolic cpu", CAPTURED),
        ("cpu and reference", HELD),
    ],
)
def test_eight_at_once_plan_once(where: str, entry: Entry) -> None:
    place, model, pool = world(where), micro_llama(), SlotPool()
    gate = threading.Barrier(TOGETHER)
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(TOGETHER) as threads:
        tasks = [threads.submit(answer, place, model, pool, entry, seed, gate) for seed in range(TOGETHER)]
        assert sum(task.result() for task in tasks) == TOGETHER * 6
        assert place.plans == 2
        # and ten more, one after another
        for seed in range(10):
            answer(place, model, pool, entry, seed % TOGETHER)
        assert place.plans == 2
    assert len(pool._idle) == TOGETHER  # eight slots served them all
    assert len({id(slot) for slot in pool._idle}) == TOGETHER


def test_slots_share_one_plan_and_no_data() -> None:
    place, model, pool = world("delayed"), micro_llama(), SlotPool()
    with pool.lease() as one, pool.lease() as two:
        for slot in (one, two):
            HELD(model, [1], place.cache(model), place, slot)
        assert one.session is not None
        assert two.session is not None
        assert one.session.optimized is two.session.optimized
        assert one.session.compiled is two.session.compiled
        assert one.session.base_cache is not two.session.base_cache
        workspaces = [bound._workspace for slot in (one, two) for bound in slot.session._bound.bound.values()]
        assert len({id(workspace) for workspace in workspaces}) == len(workspaces)


def test_a_leased_slot_is_busy() -> None:
    slot = DecodeSlot()
    epoch = slot.epoch
    with slot.lease():
        assert slot.leased
        with pytest.raises(SlotBusy):
            slot.acquire()
        assert slot.leased
    assert not slot.leased
    assert slot.epoch == epoch + 1
    with slot.lease():
        assert slot.epoch == epoch + 2


def test_a_lease_that_ends_in_an_error_gives_the_slot_back() -> None:
    pool = SlotPool()
    with pytest.raises(ZeroDivisionError), pool.lease() as slot:
        raise ZeroDivisionError
    assert not slot.leased
    with pool.lease() as again:
        assert again is slot


@pytest.mark.parametrize("where", FRAIL)
def test_models_of_one_geometry_don_t_share_plans(where: str) -> None:
    place, pool = world(where), SlotPool()
    models = [micro_llama(0), micro_llama(1), micro_phi()]
    for seed in range(6):
        answer(place, models[seed % 3], pool, CAPTURED, seed)
    for slot in pool._idle:
        assert all("shape_key" in reason for reason in slot.statistics.drops)
        assert len(slot.statistics.drops) == 5


@pytest.mark.parametrize("mode", PlanMode)
@pytest.mark.parametrize("where", FRAIL)
def test_modes(mode: PlanMode, where: str) -> None:
    place, model, slot = world(where), micro_llama(), DecodeSlot()
    cache = place.cache(model)
    for step in (tokens_of(3), [4], [5]):
        expected = place.oracle(model, step, cache)
        same_bits(run_step(model, step, cache, place.context, slot, mode, want=Last()), expected)
    statistics = slot.statistics
    counted = (statistics.replanned, statistics.held, statistics.captured)
    assert counted == {"replan": (3, 0, 0), "held": (0, 3, 0), "captured": (0, 1, 2)}[mode.value]
