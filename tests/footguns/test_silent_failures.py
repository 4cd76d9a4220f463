"""How engines with held plans go wrong, the silent ways first.

Rank 1 gives one person another's text at full speed; the last ones merely stop. Each has a test that shows
it would be seen; most live with the part that prevents them. Where a value here is not what one would wish
for, the test pins it on purpose: changing it is a decision, not an accident.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from decode.sessionkit import (
    CAPTURED,
    ENTRIES,
    FRAIL,
    HELD,
    Entry,
    micro_llama,
    same_bits,
    tokens_of,
    world,
)  # fmt: skip
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import Rows
from ostinato.errors import InvalidTruncation

pytestmark = pytest.mark.usefixtures("one_thread")

TESTS = Path(__file__).parent.parent

RANKED: tuple[tuple[str, str, str], ...] = (
    # silent, and someone else's answer
    ("plans keyed by geometry only", "decode/test_validity.py",
     "test_models_of_identical_geometry_never_share_a_plan"),
    ("the old slabs served after a swap", "decode/test_rebind_guard.py",
     "test_a_rebind_serves_the_new_cache_and_leaves_the_old"),
    ("half of a re-bind", "decode/test_rebind_guard.py",
     "test_two_sessions_are_rebound_together_or_not_at_all"),
    ("a capture over addresses that were exchanged", "decode/test_rebind_guard.py",
     "test_a_capture_of_an_older_epoch_is_stale"),
    ("one slot, two users", "engine/test_pool_plans.py", "test_eight_at_once_plan_once"),
    ("an error path that leaves a binding behind", "decode/test_session_invariants.py",
     "test_a_failure_at_any_kernel_changes_nothing"),
    ("a proof that covers too much", "decode/test_proven_requests.py", "test_each_field_of_the_proof"),
    # silent, and a wrong answer
    ("freed memory still read", "decode/test_rebind_guard.py", "test_the_old_slabs_may_go_after_a_rebind"),
    ("the first step's data changed by a later one", "decode/test_session_invariants.py",
     "test_the_first_step_s_data_stays"),
    ("a position baked into the plan", "decode/test_session_bits.py",
     "test_held_and_captured_are_the_replanned_bits"),
    ("a symbol live on one path alone", "decode/test_validity.py", "test_what_carries_the_position"),
    ("a mask that a family reads and nobody brings", "decode/test_session_bits.py",
     "test_a_live_mask_is_bound_and_may_not_be_left_out"),
    ("a length that ran ahead of the contents", "decode/test_session_invariants.py",
     "test_a_device_that_runs_out_of_anything"),
    ("a fallback that writes a position twice", "decode/test_session_invariants.py",
     "test_a_topology_change_between_the_pieces_of_a_long_step"),
    ("padding that is written or attended", "decode/test_session_invariants.py",
     "test_a_step_writes_its_own_cells_alone"),
    ("NaN from cells that nothing attends", "decode/test_session_invariants.py",
     "test_unattended_cells_may_be_nan"),
    ("state changed by a warm-up", "decode/test_session_invariants.py",
     "test_building_binding_and_capturing_write_no_cell"),
    ("one output buffer for two calls", "decode/test_session_invariants.py", "test_results_are_the_caller_s"),
    ("a view read after the next step wrote there", "decode/test_borrowed_logits.py",
     "test_the_next_step_ends_the_loan"),
    ("a second run that writes the first one's inputs", "decode/test_session_invariants.py",
     "test_a_run_in_the_middle_of_another_is_refused"),
    ("an input left out, and the last token's read", "runtime/test_staging.py",
     "test_all_values_are_checked_before_one_is_written"),
    ("inputs changed under a step", "decode/test_session_invariants.py",
     "test_token_data_may_change_after_the_call"),
    ("a replay that never looks at the topology", "decode/test_session_invariants.py",
     "test_prebuilt_runs_surface_a_topology_change"),
    ("a write past the end", "decode/test_session_invariants.py", "test_prebuilt_runs_check_their_position"),
    # silent, and slow
    ("a plan made again for every request", "decode/test_session_counts.py",
     "test_ten_more_requests_plan_nothing"),
    ("work that grows with the context", "decode/test_session_counts.py",
     "test_a_token_costs_the_same_at_every_length"),
    ("work that grows with the layers", "decode/test_host_work.py",
     "test_a_token_s_calls_don_t_grow_with_the_layers"),
    # heard
    ("a topology change that never heals", "decode/test_session_invariants.py",
     "test_a_topology_change_costs_one_token"),
)  # fmt: skip


@pytest.mark.parametrize(("failure", "file", "test"), RANKED, ids=[row[0] for row in RANKED])
def test_each_has_its_test(failure: str, file: str, test: str) -> None:
    tree = ast.parse((TESTS / file).read_text())
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


by_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
by_frail = pytest.mark.parametrize("where", FRAIL)


@by_entry
@by_frail
def test_a_plan_serves_every_length_regime(entry: Entry, where: str) -> None:
    """Short and long contexts, and a step plan first seen short: one plan each, and the right bits."""
    place, model, slot = world(where), micro_llama(), DecodeSlot()
    cache = place.cache(model, 700)
    place.fill(cache, 690)
    for length in (0, 600, 1, 513, 31, 690, 0):
        cache.truncate_to(min(length, cache.length)) if length <= cache.length else cache.advance(
            length - cache.length
        )
        for step in ([1, 2, 3], [4]):
            expected = place.oracle(model, step, cache)
            same_bits(entry(model, step, cache, place, slot), expected)
    assert slot.statistics.drops == ()


@by_entry
@by_frail
def test_what_can_t_be_trimmed_isn_t(entry: Entry, where: str) -> None:
    place, model, slot = world(where), micro_llama(), DecodeSlot()
    cache = place.cache(model)
    entry(model, tokens_of(5), cache, place, slot)
    for length in (6, 64, -1):
        with pytest.raises(InvalidTruncation):
            cache.truncate_to(length)
    assert cache.length == 5
    expected = place.oracle(model, [1], cache)
    same_bits(entry(model, [1], cache, place, slot), expected)


@by_entry
@by_frail
def test_a_request_sees_nothing_of_the_one_before(entry: Entry, where: str) -> None:
    """The same prompt after different predecessors in the same slot."""
    place, model = world(where), micro_llama()
    answers = []
    for predecessor in ([], [1, 2, 3], tokens_of(30)):
        slot = DecodeSlot()
        if predecessor:
            before = place.cache(model)
            entry(model, predecessor, before, place, slot)
            entry(model, [7], before, place, slot)
        cache = place.cache(model)
        entry(model, [9, 8, 7], cache, place, slot)
        answers.append([entry(model, [token], cache, place, slot) for token in (1, 2, 3)])
    for other in answers[1:]:
        same_bits(other, answers[0])


@by_entry
@by_frail
def test_a_used_cache_cleared_is_a_fresh_one(entry: Entry, where: str) -> None:
    place, model, slot = world(where), micro_llama(), DecodeSlot()
    used = place.cache(model)
    entry(model, tokens_of(40), used, place, slot)
    used.clear()
    for step in ([5, 4], [3], [2]):
        fresh = place.copy(used)
        same_bits(entry(model, step, used, place, slot), place.oracle(model, step, fresh))


# Pinned on purpose.


def test_pinned_a_piecewise_prefill_differs_in_the_last_bits_on_the_reference() -> None:
    """BLAS sums in an order that depends on the shape: the reference declares no bit contract, and a step
    longer than a chunk is close to its replan, not equal."""
    place, model = world("reference"), micro_llama()
    assert not place.device().traits.bit_contract
    tokens = tokens_of(600)
    one, pieces, slot = place.cache(model, 610), place.cache(model, 610), DecodeSlot()
    whole = ENTRIES[0](model, tokens, one, place, slot)
    held = HELD(model, tokens, pieces, place, slot)
    np.testing.assert_allclose(held, whole, atol=1e-4, rtol=0)
    assert list(slot.sessions) == [512]


@pytest.mark.parametrize("where", ["cpu", "symbolic cpu"])
def test_a_piecewise_prefill_has_the_very_bits_on_the_cpu(where: str) -> None:
    """Which declares the bit contract."""
    place, model = world(where), micro_llama()
    assert place.device().traits.bit_contract
    tokens = tokens_of(600)
    one, pieces, slot = place.cache(model, 610), place.cache(model, 610), DecodeSlot()
    whole = ENTRIES[0](model, tokens, one, place, slot)
    same_bits(HELD(model, tokens, pieces, place, slot), whole)
    for mine, theirs in zip(place.cells(pieces), place.cells(one), strict=True):
        same_bits(mine, theirs)


def test_pinned_a_swapped_cache_costs_a_capture() -> None:
    """Every re-bind retires the capture: two caches taking turns capture every time. Lease two slots."""
    place, model, slot = world("delayed"), micro_llama(), DecodeSlot()
    caches = [place.cache(model), place.cache(model)]
    for turn in range(6):
        CAPTURED(model, [turn], caches[turn % 2], place, slot)
    assert slot.statistics.captures == 6


def test_pinned_a_cache_on_two_devices_is_bound_anew_for_every_request() -> None:
    """Where its slabs lie in two places, a source can't say where it is: no re-bind, a new session instead,
    over the same plan."""
    place, model, slot = world("split"), micro_llama(), DecodeSlot()
    for turn in range(3):
        HELD(model, [turn], place.cache(model), place, slot)
    assert slot.statistics.sessions_built == 3
    assert slot.statistics.drops == ("residency unknown",) * 2
    assert place.plans == 1


def test_pinned_one_token_with_all_rows_uses_the_step_plan() -> None:
    place, model, slot = world("delayed"), micro_llama(), DecodeSlot()
    cache = place.cache(model)
    CAPTURED(model, [1], cache, place, slot, want=Rows((0, 0)))
    assert list(slot.sessions) == [512]
    assert slot.statistics.captured == 0


@by_frail
def test_pinned_a_failed_step_leaves_rubbish_where_nothing_looks(where: str) -> None:
    """Cells beyond the length may have been written; the next step writes them again."""
    from devices.delayed import InjectedFailure

    place, model, slot = world(where), micro_llama(), DecodeSlot()
    cache = place.cache(model)
    HELD(model, [1], cache, place, slot)
    before = place.checksum(cache)
    place.device().fail_after = 10 if where == "cpu" else 150
    with pytest.raises(InjectedFailure):
        HELD(model, [2], cache, place, slot)
    assert cache.length == 1
    assert place.checksum(cache) != before
