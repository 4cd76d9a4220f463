"""What holds at all three entry points whatever goes wrong: cache, plans, bindings, the next step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
    REPLAN,
    WORLDS,
    Entry,
    World,
    bytes_of,
    micro_llama,
    micro_phi,
    same_bits,
    tokens_of,
    world,
)  # fmt: skip
from devices.delayed import InjectedFailure
from ostinato.decode.capture import CapturedDecodeSession
from ostinato.decode.data import token_data
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.session import DecodeSession
from ostinato.decode.shelf import PlanShelf
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import Argmax, Hidden, Rows
from ostinato.device.traits import WritePath
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import (
    BindingMismatch,
    CacheMismatch,
    CapacityExceeded,
    EmptyStep,
    RowOutOfRange,
    TokenDataMismatch,
    TokenOutOfRange,
    TopologyChanged,
    WorkspaceBusy,
)
from ostinato.ir import Location
from ostinato.models.contract import Model
from pairwise import pairwise

pytestmark = pytest.mark.usefixtures("one_thread")

by_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
by_path = pytest.mark.parametrize("path", WritePath)
by_frail = pytest.mark.parametrize("where", FRAIL)


def ready(
    place: World, entry: Entry, model: Model | None = None, capacity: int = 64, path: WritePath | None = None
) -> tuple[Model, KvCache, DecodeSlot]:
    """Seven positions, and every plan of the entry point made."""
    model = model or micro_llama()
    cache, slot = place.cache(model, capacity), DecodeSlot()
    for step in (tokens_of(5), [5], [6]):
        entry(model, step, cache, place, slot, write_path=path)
    return model, cache, slot


class Snapshot:
    """Everything that a failed step must leave alone."""

    def __init__(self, place: World, cache: KvCache, slot: DecodeSlot) -> None:
        self._place, self._cache, self._slot = place, cache, slot
        self._before = self._now()

    def _now(self) -> tuple[Any, ...]:
        bindings = {
            rows: (
                s,
                s.base_cache,
                dict(s.base_cache.of_graph(s.step.graph.id)),
                s._bound,
                s.epoch,
                s.alloc_id,
            )
            for rows, s in self._slot.sessions.items()
        }
        cells = [cells.tobytes() for cells in self._place.cells(self._cache)]
        length, capture = self._cache.length, self._slot.capture
        return length, self._cache.alloc_id, cells, bindings, capture, capture and capture.epoch

    def check(self) -> None:
        assert self._now() == self._before


# Failures on the device.


def check_injected_failure(entry: Entry, place: World, *, path: WritePath, stride: int) -> None:
    model, cache, slot = ready(place, entry, path=path)
    device = place.device()
    device.kernels = 0
    entry(model, [7], cache, place, slot, write_path=path)
    total = device.kernels
    assert total > 15
    for at in [*range(0, total, stride), total - 1]:
        snapshot, statistics = Snapshot(place, cache, slot), replace(slot.statistics)
        device.fail_after = at
        with pytest.raises(InjectedFailure):
            entry(model, [8], cache, place, slot, write_path=path)
        snapshot.check()
        assert slot.statistics == statistics
        expected = place.oracle(model, [at % 40], cache, path=path)
        length = cache.length
        same_bits(entry(model, [at % 40], cache, place, slot, write_path=path), expected)
        cache.truncate_to(length)


@by_entry
@by_path
@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_a_failure_at_any_kernel_changes_nothing(entry: Entry, late: bool, path: WritePath) -> None:
    check_injected_failure(entry, world("delayed", late=late), path=path, stride=17)


@by_entry
@by_path
def test_a_failure_at_any_kernel_of_the_cpu_device_changes_nothing(entry: Entry, path: WritePath) -> None:
    """A native run is over when the call returns: nothing of it comes late."""
    check_injected_failure(entry, world("cpu"), path=path, stride=1)


@by_entry
@by_frail
@pytest.mark.parametrize("at", [0, 30, 90])
def test_a_failure_of_the_very_first_step(entry: Entry, where: str, at: int) -> None:
    for tokens in ([3], [3, 4, 5]):
        place, model, slot = world(where), micro_llama(), DecodeSlot()
        cache = place.cache(model)
        place.device().fail_after = at // 6 if where == "cpu" else at  # regions are few kernels
        with pytest.raises(InjectedFailure):
            entry(model, tokens, cache, place, slot)
        assert cache.length == 0
        same_bits(entry(model, tokens, cache, place, slot), place.oracle(model, tokens, place.cache(model)))


@by_entry
@by_frail
def test_a_failure_in_a_later_piece_of_a_long_step(
    entry: Entry, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ostinato.decode import request

    monkeypatch.setattr(request, "CHUNK", 4)
    place = world(where)
    model, cache, slot = ready(place, entry)
    device, snapshot = place.device(), Snapshot(place, cache, slot)
    device.fail_after = 30 if where == "cpu" else 250
    if entry is not REPLAN:
        with pytest.raises(InjectedFailure):
            entry(model, tokens_of(11), cache, place, slot)
        snapshot.check()
    device.fail_after = None
    expected = place.oracle(model, tokens_of(11), cache)
    same_bits(entry(model, tokens_of(11), cache, place, slot), expected)


@by_entry
@by_frail
@pytest.mark.parametrize("method", ["upload", "download", "allocate", "compile", "pack"])
def test_a_device_that_runs_out_of_anything(
    entry: Entry, where: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call in turn fails, while plans are made as well as later; the step after it is right."""
    for fails_at in range(60):
        place, model, slot = world(where), micro_llama(), DecodeSlot()
        cache, calls, device = place.cache(model), [0], type(place.device())
        original = getattr(device, method)

        def failing(self: Any, *arguments: Any, of: Any = original, n: Any = calls, k: int = fails_at) -> Any:
            n[0] += 1
            if n[0] == k + 1:
                raise MemoryError
            return of(self, *arguments)

        failed = None
        with monkeypatch.context() as patch:
            patch.setattr(device, method, failing)
            for step in ([1, 2, 3], [4], [5]):
                length, sessions = cache.length, dict(slot.sessions)
                try:
                    entry(model, step, cache, place, slot)
                except MemoryError:
                    failed = step
                    break
        if failed is None:
            once = method == "compile" or (where, method) == (
                "cpu",
                "download",
            )  # a capture's results are read
            assert fails_at > (0 if once else 1)
            return
        assert cache.length == length
        assert {rows: slot.sessions.get(rows) for rows in sessions} == sessions
        same_bits(
            entry(model, failed, cache, place, slot),
            place.oracle(model, failed, rewound(place, cache, len(failed))),
        )
    pytest.fail("never got through")


def rewound(place: World, cache: KvCache, count: int) -> KvCache:
    copy = place.copy(cache)
    copy.truncate_to(cache.length - count)
    return copy


# What is refused before anything runs.

REFUSED: dict[str, tuple[type[Exception], list[int], dict[str, Any]]] = {
    "no token": (EmptyStep, [], {}),
    "too large": (TokenOutOfRange, [48], {}),
    "negative": (TokenOutOfRange, [-1], {}),
    "row": (RowOutOfRange, [1], {"want": Rows((1,))}),
    "overflow": (CapacityExceeded, [1] * 58, {}),
}


@by_entry
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("where", HOMES)
def test_a_refused_step_changes_nothing(entry: Entry, where: str, name: str) -> None:
    place = world(where)
    model, cache, slot = ready(place, entry)
    error, tokens, more = REFUSED[name]
    snapshot, whole = Snapshot(place, cache, slot), place.checksum(cache)
    with pytest.raises(error):
        entry(model, tokens, cache, place, slot, **more)
    snapshot.check()
    assert place.checksum(cache) == whole  # not even an unattended cell
    expected = place.oracle(model, [9], cache)
    same_bits(entry(model, [9], cache, place, slot), expected)


@by_entry
@by_frail
def test_a_cache_of_another_geometry_is_refused(entry: Entry, where: str) -> None:
    place = world(where)
    model, cache, slot = ready(place, entry)
    snapshot = Snapshot(place, cache, slot)
    with pytest.raises(CacheMismatch):
        entry(model, [1], place.cache(MODELS["windowed"]()), place, slot)
    snapshot.check()


@by_entry
@by_path
@pytest.mark.parametrize("where", WORLDS)
def test_a_cache_is_filled_to_exactly_its_capacity(entry: Entry, where: str, path: WritePath) -> None:
    place = world(where)
    model, cache, slot = ready(place, entry, capacity=10, path=path)
    for left in (3, 2, 1):
        assert cache.capacity - cache.length == left
        expected = place.oracle(model, [left], cache, path=path)
        same_bits(entry(model, [left], cache, place, slot, write_path=path), expected)
    full, snapshot = place.checksum(cache), Snapshot(place, cache, slot)
    for tokens in ([1], [1, 2]):
        with pytest.raises(CapacityExceeded) as caught:
            entry(model, tokens, cache, place, slot, write_path=path)
        assert (caught.value.needed, caught.value.capacity) == (10 + len(tokens), 10)
    snapshot.check()
    assert place.checksum(cache) == full
    # and by a prompt, whose padding on a bucketed device stands far behind the end
    prompt = place.cache(model, 10)
    expected = place.oracle(model, tokens_of(10), prompt, path=path)
    same_bits(entry(model, tokens_of(10), prompt, place, slot, write_path=path), expected)


def check_capacity_of_prebuilt_runs(where: str) -> None:
    """Sessions and captures check by themselves, before a kernel runs."""
    place = world(where)
    model, cache, slot = ready(place, CAPTURED, capacity=8)
    session, capture = slot.session, slot.capture
    assert session is not None
    assert capture is not None
    device, before = place.device(), place.checksum(cache)
    kernels = device.kernels
    for at, error in ((8, CapacityExceeded), (9, CapacityExceeded), (-1, TokenDataMismatch)):
        data = token_data(session.step, model, np.array([1]), max(at, 0))
        data = replace(data, offset=at)
        with pytest.raises(error):
            session.realize_token(session.location, data, session.per_token_sym_env(at))
        with pytest.raises(error):
            capture.replay_token(data)
    assert device.kernels == kernels
    assert place.checksum(cache) == before
    data = token_data(session.step, model, np.array([1]), 7)
    expected = place.oracle(model, [1], cache)
    same_bits(capture.replay_token(data), expected)


@by_frail
def test_prebuilt_runs_check_their_position(where: str) -> None:
    check_capacity_of_prebuilt_runs(where)


@by_path
@by_frail
def test_the_symbolic_position_is_checked_too(path: WritePath, where: str) -> None:
    place = world(where)
    model, _cache, slot = ready(place, HELD, capacity=8, path=path)
    session = slot.session
    assert session is not None
    data = token_data(session.step, model, np.array([1]), 8)
    with pytest.raises(CapacityExceeded):
        session.realize_token(session.location, data, session.per_token_sym_env(8))


@by_path
@by_frail
def test_an_offset_belongs_to_one_path_alone(path: WritePath, where: str) -> None:
    place = world(where)
    model, cache, slot = ready(place, HELD, path=path)
    session = slot.session
    assert session is not None
    before = place.checksum(cache)
    data = token_data(session.step, model, np.array([1]), 7)
    data = replace(data, offset=7 if path is WritePath.SYMBOLIC else None)
    with pytest.raises(TokenDataMismatch, match="offset"):
        session.realize_token(session.location, data, session.per_token_sym_env(7))
    assert place.checksum(cache) == before


@pytest.mark.parametrize("field", ["token_ids", "rope_cos", "rope_sin"])
@pytest.mark.parametrize("change", ["longer", "dtype"])
@by_frail
def test_data_of_another_shape_or_type_is_refused(field: str, change: str, where: str) -> None:
    place = world(where)
    model, cache, slot = ready(place, CAPTURED)
    session, capture = slot.session, slot.capture
    assert session is not None
    assert capture is not None
    data = token_data(session.step, model, np.array([1]), 7)
    value = getattr(data, field)
    wrong = np.concatenate([value, value], axis=-1) if change == "longer" else value.astype(np.complex128)
    snapshot, whole, kernels = Snapshot(place, cache, slot), place.checksum(cache), place.device().kernels
    for run in (
        lambda d: session.realize_token(session.location, d, session.per_token_sym_env(7)),
        capture.replay_token,
    ):
        with pytest.raises(BindingMismatch):
            run(replace(data, **{field: wrong}))
    assert place.device().kernels == kernels
    snapshot.check()
    assert place.checksum(cache) == whole
    same_bits(capture.replay_token(data), place.oracle(model, [1], cache))


@by_frail
def test_rows_of_a_prebuilt_token(where: str) -> None:
    place = world(where)
    model, cache, slot = ready(place, CAPTURED)
    session, capture = slot.session, slot.capture
    assert session is not None
    assert capture is not None
    data, env = token_data(session.step, model, np.array([1]), 7), session.per_token_sym_env(7)
    for want in (Rows(()), Rows((0,)), Rows((0, 0, 0))):
        expected = place.oracle(model, [1], cache, want)
        same_bits(session.realize_token(session.location, data, env, want=want), expected)
        same_bits(capture.replay_token(data, want=want), expected)
    for run in (lambda w: session.realize_token(session.location, data, env, want=w),
                lambda w: capture.replay_token(data, want=w)):  # fmt: skip
        with pytest.raises(RowOutOfRange):
            run(Rows((1,)))


# Topology.


def add(place: World) -> None:
    place.devices.register(ReferenceDevice(7))


def add_and_remove(place: World) -> None:
    add(place)
    place.devices.unregister(Location("reference", 7))


def put_back(place: World) -> None:
    """The device leaves and comes back."""
    device = place.device()
    place.devices.unregister(device.location)
    place.devices.register(device)


CHANGES: dict[str, Callable[[World], None]] = {
    "a device more": add, "a device came and went": add_and_remove, "the device itself came back": put_back,
}  # fmt: skip


def check_topology_change(entry: Entry, where: str, change: Callable[[World], None], path: WritePath) -> None:
    place = world(where)
    model, cache, slot = ready(place, entry, path=path)
    made, statistics = place.plans, replace(slot.statistics)
    change(place)
    results = []
    for token in (8, 9, 10):
        expected = place.oracle(model, [token], cache, path=path)
        results.append(entry(model, [token], cache, place, slot, write_path=path))
        same_bits(results[-1], expected)
    assert cache.length == 10
    if entry is REPLAN:
        return
    assert slot.statistics.replanned == statistics.replanned + 1  # one token, and a new plan for the next
    assert place.plans == made + 2
    assert len(slot.statistics.drops) == len(statistics.drops) + 1
    assert "topology" in slot.statistics.drops[-1]
    ran = slot.statistics.held + slot.statistics.captured - statistics.held - statistics.captured
    assert ran == 2
    session = slot.session
    assert session is not None
    assert session.optimized.generation == place.devices.generation
    if statistics.captured:
        assert slot.capture is not None
        assert slot.capture.session is session


@pairwise(
    "change where path entry",
    tuple(CHANGES), ("reference", "split", "delayed", "cpu", "cpu and reference"), tuple(WritePath), ENTRIES,
)  # fmt: skip
def test_a_topology_change_costs_one_token(entry: Entry, where: str, change: str, path: WritePath) -> None:
    check_topology_change(entry, where, CHANGES[change], path)


@pytest.mark.parametrize(
    "change", [*CHANGES.values(), lambda place: place.devices.unregister(place.places[0])]
)
@by_frail
def test_prebuilt_runs_surface_a_topology_change(change: Callable[[World], None], where: str) -> None:
    place = world(where)
    model, cache, slot = ready(place, CAPTURED)
    session, capture = slot.session, slot.capture
    assert session is not None
    assert capture is not None
    planned = session.optimized.generation
    data, env = token_data(session.step, model, np.array([1]), 7), session.per_token_sym_env(7)
    device = place.device()
    before, kernels = place.checksum(cache), device.kernels
    change(place)
    for run in (
        lambda: session.realize_token(session.location, data, env),
        lambda: capture.replay_token(data),
    ):
        with pytest.raises(TopologyChanged) as caught:
            run()
        assert (caught.value.plan, caught.value.current) == (planned, place.devices.generation)
    assert device.kernels == kernels
    if device.location in place.devices:
        assert place.checksum(cache) == before


@by_frail
def test_a_topology_change_between_the_pieces_of_a_long_step(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No position is written twice, none is left out."""
    from ostinato.decode import request

    monkeypatch.setattr(request, "CHUNK", 4)
    place = world(where)
    model, cache, slot = ready(place, HELD)
    device, waits = place.device(), place.device().waits
    expected = place.oracle(model, tokens_of(10), cache)
    wait_for = device.waits + 1
    tick = device.tick

    def changing() -> None:
        if device.waits == wait_for and Location("reference", 7) not in place.devices:
            add(place)
        tick()

    monkeypatch.setattr(device, "tick", changing)
    same_bits(HELD(model, tokens_of(10), cache, place, slot), expected)
    assert device.waits > waits
    assert cache.length == 17
    assert slot.statistics.replanned == 1
    same_bits(HELD(model, [3], cache, place, slot), place.oracle(model, [3], rewound(place, cache, 1)))


# What leaves no trace.


@by_path
@pytest.mark.parametrize("where", [*ALONE, "split", "cpu and reference"])
def test_building_binding_and_capturing_write_no_cell(where: str, path: WritePath) -> None:
    place, model = world(where), micro_llama()
    cache, other = place.cache(model), place.cache(model)
    place.fill(cache, 9)
    place.fill(other, 5, seed=1)
    sums = place.checksum(cache), place.checksum(other)
    session = DecodeSession.build(place.context, model, cache, path, 1, np.array([3], np.int64), PlanShelf())
    assert isinstance(session, DecodeSession)
    CapturedDecodeSession.capture(session, place.context)
    session.rebind_kv(other)
    CapturedDecodeSession.capture(session, place.context)
    session.rebind_kv(cache)
    assert (place.checksum(cache), place.checksum(other)) == sums
    assert (cache.length, other.length) == (9, 5)


@by_entry
@pytest.mark.parametrize("where", HOMES)
def test_a_step_writes_its_own_cells_alone(entry: Entry, where: str) -> None:
    """Rows of padding included: on the bucketed device three rows are eight."""
    place = world(where)
    model, cache, slot = ready(place, entry)
    for step in ([1, 2, 3], [4], tokens_of(9)):
        before, length = place.cells(cache, 64), cache.length
        entry(model, step, cache, place, slot)
        for old, new in zip(before, place.cells(cache, 64), strict=True):
            same_bits(new[:, :length], old[:, :length])
            same_bits(new[:, cache.length :], old[:, cache.length :])
            assert (new[:, length : cache.length] != old[:, length : cache.length]).all()


@pairwise("name where path entry", ("llama", "windowed", "masked"), WORLDS, tuple(WritePath), ENTRIES)
def test_unattended_cells_may_be_nan(entry: Entry, where: str, name: str, path: WritePath) -> None:
    place, model = world(where), MODELS[name]()
    _, cache, slot = ready(place, entry, model, path=path)
    for step in ([8], tokens_of(3), [9], [10]):
        expected = place.oracle(model, step, cache, path=path)
        assert np.isfinite(expected).all()
        place.poison(cache)
        same_bits(entry(model, step, cache, place, slot, write_path=path), expected)
    cache.truncate_to(4)
    expected = place.oracle(model, [1], cache, path=path)
    place.poison(cache)
    same_bits(entry(model, [1], cache, place, slot, write_path=path), expected)


@by_entry
@pytest.mark.parametrize("where", HOMES)
def test_results_are_the_caller_s(entry: Entry, where: str) -> None:
    place = world(where)
    model, cache, slot = ready(place, entry)
    kept = []
    for step, want in (
        ([1], {}),
        ([2], {"want": Hidden()}),
        ([3, 4], {"want": Hidden()}),
        ([5, 6], {}),
        ([7], {}),
    ):
        result = entry(model, step, cache, place, slot, **want)
        kept.append((result, result.copy()))
    for result, copy in kept:
        same_bits(result, copy)
    expected = place.oracle(model, [3], cache)
    for result, _ in kept:
        result[:] = np.nan
    same_bits(entry(model, [3], cache, place, slot), expected)
    assert type(entry(model, [3], cache, place, slot, want=Argmax())) is int


@by_frail
def test_token_data_may_change_after_the_call(where: str) -> None:
    """The caller's arrays are read in the call, and never again."""
    place = world(where)
    model, _cache, slot = ready(place, CAPTURED)
    session, capture = slot.session, slot.capture
    assert session is not None
    assert capture is not None
    base = dict(session.base_cache.of_graph(session.step.graph.id))
    data = token_data(session.step, model, np.array([1]), 7)
    env = session.per_token_sym_env(7)
    for run in (capture.replay_token, lambda d: session.realize_token(session.location, d, env)):
        first = run(data)
        changed = replace(data, token_ids=np.array([2]), rope_cos=data.rope_cos * 0)
        assert run(changed).tobytes() != first.tobytes()
        same_bits(run(data), first)
    assert dict(session.base_cache.of_graph(session.step.graph.id)) == base


def check_base_data_stays(where: str) -> None:
    """A token's data overlays what was bound first, and never changes it."""
    place = world(where)
    model, cache, slot = ready(place, CAPTURED)
    session = slot.session
    assert session is not None
    step = session.step
    assert step.count is not None
    nodes = (step.token_ids, step.rope_cos, step.rope_sin, step.out_rows, step.start, step.count)

    def data() -> list[bytes]:
        baked = session.base_cache.of_graph(step.graph.id)
        return [bytes_of(baked[node]) for node in nodes if node is not None]

    before = data()
    for entry in (CAPTURED, HELD):
        entry(model, [40], cache, place, slot)
    assert data() == before


@by_frail
def test_the_first_step_s_data_stays(where: str) -> None:
    check_base_data_stays(where)


# One run at a time.


def check_nested(kind: str, where: str) -> None:
    """Another run over the same buffers, begun while one is under way (as a second thread would), is refused
    before it writes its inputs."""
    place = world(where)
    model, cache, slot = ready(place, CAPTURED)
    session, capture = slot.session, slot.capture
    assert session is not None
    assert capture is not None
    env = session.per_token_sym_env(7)
    mine, others = (session.data_of(np.array([token]), 7) for token in (1, 30))
    runs: dict[str, Callable[[Any], Any]] = {
        "held": lambda data: session.realize_token(session.location, data, env),
        "captured": capture.replay_token,
    }
    run, device, refused = runs[kind], place.device(), []
    tick = device.tick

    def nested() -> None:
        if not refused:
            refused.append(True)
            with pytest.raises(WorkspaceBusy):
                run(others)
        tick()

    expected = place.oracle(model, [1], cache)
    device.tick = nested
    try:
        same_bits(run(mine), expected)
    finally:
        device.tick = tick
    assert refused
    same_bits(run(mine), expected)


@pytest.mark.parametrize("kind", ["held", "captured"])
@by_frail
def test_a_run_in_the_middle_of_another_is_refused(kind: str, where: str) -> None:
    check_nested(kind, where)


@pytest.mark.parametrize("error", [InjectedFailure(), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
@by_frail
def test_a_run_that_broke_off_keeps_its_inputs_to_itself(
    error: BaseException, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still be reading them: the next token's are written elsewhere."""
    place = world(where)
    model, cache, slot = ready(place, HELD)
    session, device = slot.session, place.device()
    assert session is not None
    staging = session._staging
    assert staging is not None
    HELD(model, [7], cache, place, slot)
    assert session._staging is staging  # written again, not made again

    def broken() -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(device, "tick", broken)
        with pytest.raises(type(error)):
            HELD(model, [7], cache, place, slot)
    same_bits(HELD(model, [9], cache, place, slot), place.oracle(model, [9], rewound(place, cache, 1)))
    assert session._staging is not staging


@by_frail
def test_two_models_and_caches_through_one_slot_in_turn(where: str) -> None:
    place, slot = world(where), DecodeSlot()
    models = [micro_llama(), micro_phi()]
    caches = [place.cache(model) for model in models]
    for turn in range(8):
        model, cache = models[turn % 2], caches[turn % 2]
        step = tokens_of(1 + turn % 3, turn)
        expected = place.oracle(model, step, cache)
        same_bits(CAPTURED(model, step, cache, place, slot), expected)
