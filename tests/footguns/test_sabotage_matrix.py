"""Each guard of the held plans, disabled: a named check goes red. What nothing notices is no guard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decode import test_rebind_guard as rebinding
from decode import test_session_invariants as invariants
from decode import test_validity as validities
from decode.sessionkit import CAPTURED, FRAIL, HELD, World, micro_llama, world
from ostinato.decode import capture, held, rebind, request, session, slot, validity
from ostinato.decode.capture import CapturedDecodeSession
from ostinato.decode.data import token_data
from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.held import HeldSession
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.rebind import RebindRefusal
from ostinato.decode.session import DecodeSession
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.step import SlabKvView
from ostinato.decode.validity import PlanValidity
from ostinato.decode.want import All
from ostinato.device.storage import Storage
from ostinato.device.traits import WritePath
from ostinato.errors import BindingMismatch, DeviceMismatch, IndexOutOfRange, SlotBusy, StaleCapture
from ostinato.models.contract import Model, ShapeKey
from ostinato.models.loader import load_model
from ostinato.runtime.compiled import BoundPlan
from ostinato.runtime.registry import Registry
from sabotage import NOTICED, goes_red, nothing

pytestmark = pytest.mark.usefixtures("one_thread")

by_frail = pytest.mark.parametrize("where", FRAIL)


def never(*_: object, **__: object) -> bool:
    return False


def blind_to(field: str) -> Callable[[str, object, object], bool]:
    """`differs` without one field."""
    return lambda name, mine, theirs: name != field and mine != theirs


# The validity list.

FIELDS: dict[str, Callable[[], None]] = {
    "seq": lambda: validities.check_field("seq", validities.OTHERS["seq"]),
    "max_seq_len": lambda: validities.check_field("max_seq_len", validities.OTHERS["max_seq_len"]),
    "n_layers": lambda: validities.check_field("n_layers", validities.OTHERS["n_layers"]),
    "cache_dtype": lambda: validities.check_field("cache_dtype", validities.OTHERS["cache_dtype"]),
    "kv_geometry": lambda: validities.check_field("kv_geometry", validities.OTHERS["kv_geometry"]),
    "locations": lambda: validities.check_field("location", validities.OTHERS["location"]),
    "write_path": lambda: validities.check_field("write_path", validities.OTHERS["write_path"]),
    "shape_key": lambda: validities.check_field(
        "shape_key", lambda held: validities.other_key("weights", micro_llama())
    ),
    "alloc_id": validities.check_allocation,
}


@pytest.mark.parametrize("field", FIELDS)
def test_every_comparison_of_the_validity_list(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = {"seq": session, "alloc_id": held}.get(field, validity)
    goes_red(monkeypatch, owner, "differs", blind_to(field), FIELDS[field])


@pytest.mark.parametrize("how", ["weights", "family", "rope", "eps"])
@pytest.mark.parametrize("where", ["reference", "cpu"])
def test_the_shape_key_keeps_models_apart(how: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen in the logits (or, of a family that computes the same another way, in the plans dropped)."""
    goes_red(
        monkeypatch, validity, "differs", blind_to("shape_key"),
        lambda: validities.check_other_models_never_share(how, where),
    )  # fmt: skip


def test_the_weight_set_in_the_shape_key(monkeypatch: pytest.MonkeyPatch) -> None:
    blind = property(lambda self: ShapeKey(self.family.name, 0, self.config))
    goes_red(
        monkeypatch,
        Model,
        "shape_key",
        blind,
        lambda: validities.check_other_models_never_share("weights", "reference"),
    )


def test_the_context_s_device_in_the_locations(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch, validity, "differs", blind_to("locations"),
        lambda: validities.test_contexts_on_different_devices_never_share_a_plan("split"),
        expect=(*NOTICED, DeviceMismatch),
    )  # fmt: skip


@by_frail
def test_devices_of_another_registry(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch,
        request,
        "leave_other_devices",
        nothing,
        lambda: validities.check_registries_are_told_apart(where),
    )


# The re-bind.

by_kept = pytest.mark.parametrize("where", rebinding.WHERE)


@by_kept
def test_residency_unknown(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch,
        rebind,
        "residency_unknown",
        never,
        lambda: rebinding.check_refusal("unknown residency", where),
    )


@pytest.mark.parametrize(
    "name",
    [
        "location says another ordinal", "slab of another ordinal", "slab of another kind",
        "all of it on another device",
    ],
)  # fmt: skip
@by_kept
def test_residency_differs(name: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch, rebind, "residency_differs", never, lambda: rebinding.check_refusal(name, where),
        expect=(*NOTICED, DeviceMismatch),
    )  # fmt: skip


STORAGE_FIELDS = {
    "dtype": "dtype", "encoding": "encoding", "bundling": "roles", "nbytes": "extent",
}  # fmt: skip


@pytest.mark.parametrize("field", STORAGE_FIELDS)
@by_kept
def test_each_field_of_the_storages(field: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(held: Storage, offered: Storage) -> str | None:
        fields = [name for name in STORAGE_FIELDS if name != field]
        return next((name for name in fields if getattr(held, name) != getattr(offered, name)), None)

    goes_red(
        monkeypatch, rebind, "storage_difference", blind,
        lambda: rebinding.check_refusal(STORAGE_FIELDS[field], where),
        expect=(*NOTICED, BindingMismatch),
    )  # fmt: skip


def test_staging_before_committing(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = HeldSession.stage_kv

    def eager(self: HeldSession, source: Any) -> Any:
        staged = stage(self, source)
        if not isinstance(staged, RebindRefusal):
            self.commit_kv(staged)
        return staged

    goes_red(monkeypatch, HeldSession, "stage_kv", eager, rebinding.check_rebinding_both_or_none)


def test_a_refusal_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: HeldSession, source: Any) -> Any:
        self.epoch += 1
        refusal = self.stage_kv(source)
        if isinstance(refusal, RebindRefusal):
            return refusal
        self.commit_kv(refusal)
        return None

    goes_red(
        monkeypatch, HeldSession, "rebind_kv", half, lambda: rebinding.check_refusal("missing slot", "cpu")
    )


# Captures.


@by_frail
def test_retiring_the_capture_before_the_commit(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        with pytest.MonkeyPatch.context() as patch:
            rebinding.check_capture_goes_before_the_commit(patch, where)

    goes_red(monkeypatch, slot, "retire_capture", nothing, check)


def test_retiring_the_capture_before_its_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(monkeypatch, slot, "retire_capture", nothing, rebinding.check_reader_before_owner)


@by_frail
def test_the_epoch_of_a_capture(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch, CapturedDecodeSession, "check_epoch", nothing,
        lambda: rebinding.check_stale_capture(where),
    )  # fmt: skip


@by_frail
def test_a_stale_capture_is_seen_by_the_slot(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch, CapturedDecodeSession, "is_stale", property(never),
        lambda: rebinding.check_stale_capture(where),
    )  # fmt: skip
    monkeypatch.setattr(slot, "retire_capture", nothing)
    with pytest.raises(StaleCapture):
        rebinding.test_a_slot_whose_session_was_rebound_by_hand_captures_anew(where)


@by_frail
def test_buffers_of_its_own(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture that replays over the base cache's own data changes it."""

    def shared(held: Any, context: Any) -> Any:
        baked = held.base_cache.of_graph(held.step.graph.id)
        varying = (held.step.token_ids, held.step.rope_cos, held.step.rope_sin, held.step.start)
        return {node: baked[node] for node in varying}

    goes_red(
        monkeypatch, capture, "_own_buffers", shared, lambda: invariants.check_base_data_stays(where)
    )  # fmt: skip


@by_frail
def test_storages_of_its_own_for_a_token_s_data(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A held token that writes where the first one's data was bound changes it."""

    def shared(self: DecodeSession, data: Any, env: Any) -> Any:
        baked = self.base_cache.of_graph(self.step.graph.id)
        for node, value in data.items():
            if node in baked:
                self.devices.device(baked[node].location).write(value, baked[node])
        return {}

    goes_red(
        monkeypatch, DecodeSession, "_brought", shared, lambda: invariants.check_base_data_stays(where)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "where"), [("held", "delayed"), ("captured", "delayed"), ("held", "cpu")]
)  # fmt: skip
def test_one_run_at_a_time(kind: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's own refusal comes when the inputs have been written over; a capture of the CPU device
    refuses before it writes them."""

    def leave(self: BoundPlan) -> None:
        if self._in_use.locked():
            self._in_use.release()

    monkeypatch.setattr(BoundPlan, "leave", leave)
    goes_red(monkeypatch, BoundPlan, "enter", nothing, lambda: invariants.check_nested(kind, where))


# Position, topology, bindings, order.


@by_frail
def test_the_position_of_prebuilt_runs(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch, HeldSession, "check_position", nothing,
        lambda: invariants.check_capacity_of_prebuilt_runs(where),
        expect=(*NOTICED, IndexOutOfRange),
    )  # fmt: skip


@pytest.mark.parametrize("entry", [HELD, CAPTURED], ids=lambda entry: entry.name)
@pytest.mark.parametrize("change", invariants.CHANGES)
@by_frail
def test_the_topology_generation(
    entry: Any, change: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_red(
        monkeypatch, Registry, "check_generation", nothing,
        lambda: invariants.check_topology_change(
            entry, where, invariants.CHANGES[change], WritePath.DEVICE_OFFSET
        ),
    )  # fmt: skip


@by_frail
def test_the_scope_of_an_overlay(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that binds its data for good leaves a binding behind when it fails."""
    run = HeldSession._run

    def leaking(self: HeldSession, data: Any, env: Any, want: Any) -> Any:
        plan = self.optimized
        for node, storage in self._context.overlay(plan, data, env).items():
            self.base_cache.bind(plan.graph_id, plan.nodes[node], storage)
        return run(self, data, env, want)

    def check() -> None:
        invariants.check_injected_failure(HELD, world(where), path=WritePath.DEVICE_OFFSET, stride=1000)

    goes_red(monkeypatch, HeldSession, "_run", leaking, check)


@by_frail
def test_a_length_that_runs_ahead(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Advancing before the run succeeded."""
    check_room = KvCache.check_room

    def hasty(self: KvCache, count: int) -> None:
        check_room(self, count)
        if self.length and count == 1:
            self._length += count

    def check() -> None:
        invariants.check_injected_failure(HELD, world(where), path=WritePath.DEVICE_OFFSET, stride=1000)

    goes_red(monkeypatch, KvCache, "check_room", hasty, check)


def check_golden(fixtures: Path) -> None:
    place: World = world("delayed")
    model = load_model(fixtures / "tiny-llama-grouped.gguf")
    golden = np.load(fixtures / "tiny-llama-grouped.npz")
    cache, got = place.cache(model, 40), []
    for count in (9, 1, 1, 1):
        tokens = [int(token) for token in golden["tokens"][cache.length : cache.length + count]]
        got.append(forward_with_kv_context(model, tokens, cache, place.context, want=All()))
    np.testing.assert_allclose(np.concatenate(got), golden["logits"][:12], atol=1e-4, rtol=0)


def test_reads_after_writes(fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention over the slabs as they were before the step's own rows."""

    def forgetful(self: SlabKvView, k: Any, v: Any) -> None:
        self._write(self.k_slab, k)
        self._write(self.v_slab, v)

    goes_red(monkeypatch, SlabKvView, "append", forgetful, lambda: check_golden(fixtures))


def test_the_position_itself(fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle of all comparisons here is checked against transformers, not against itself."""

    def behind(*arguments: Any) -> Any:
        data = token_data(*arguments)
        assert data.offset is not None
        return replace(data, offset=max(data.offset - 1, 0))

    goes_red(monkeypatch, request, "token_data", behind, lambda: check_golden(fixtures))


def test_structure_wins_over_the_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict_of = HeldSession.validity

    def hasty(self: HeldSession, structure: Any, alloc_id: int) -> PlanValidity:
        if alloc_id != self.alloc_id:
            return PlanValidity.ALLOCATION_CHANGED
        return verdict_of(self, structure, alloc_id)

    goes_red(monkeypatch, HeldSession, "validity", hasty, FIELDS["max_seq_len"])


def test_one_user_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        held = DecodeSlot()
        with held.lease(), pytest.raises(SlotBusy):
            held.acquire()

    goes_red(monkeypatch, DecodeSlot, "acquire", nothing, check, expect=(*NOTICED, RuntimeError))


def test_a_cache_of_another_geometry(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch, request, "check_cache", nothing,
        lambda: invariants.test_a_cache_of_another_geometry_is_refused(HELD, "delayed"),
    )  # fmt: skip
