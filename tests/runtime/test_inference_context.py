"""Realising: what is bound, what is refused, and a topology that changes meanwhile."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from ostinato.device.storage import Part, Storage
from ostinato.device.topology import TopologySnapshot
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import BindingMismatch, MalformedLocation, NoDevice, UnboundConst
from ostinato.ir import ConstRole, DType, Graph, Location, SymEnv, SymId, Tensor, linear
from ostinato.ir import encoding as enc
from ostinato.runtime import context as context_module
from ostinato.runtime import storage_cache
from ostinato.runtime.context import Bindings, InferenceContext
from ostinato.runtime.counters import Counters
from ostinato.runtime.registry import Registry
from sabotage import goes_red, nothing

ROWS = SymId("rows")


def registry(*ordinals: int) -> Registry:
    devices = Registry()
    for ordinal in ordinals:
        devices.register(ReferenceDevice(ordinal))
    return devices


def doubled() -> tuple[Graph, Tensor, Tensor]:
    graph = Graph()
    x = graph.const("x", ConstRole.DATA, (ROWS, 2))
    return graph, x, x + x


def test_results_are_the_caller_s_own() -> None:
    graph, x, y = doubled()
    context = InferenceContext("reference", registry(0))
    data = np.ones((3, 2), np.float32)
    first, again = context.realize(graph, [y.id, y.id], Bindings(data={x.id: data}), SymEnv({ROWS: 3}))
    first[:] = 9
    assert again.tolist() == [[2, 2]] * 3
    (echoed,) = context.realize(graph, [x.id], Bindings(data={x.id: data}), SymEnv({ROWS: 3}))
    echoed[:] = 9
    assert data.tolist() == [[1, 1]] * 3


def test_no_device() -> None:
    with pytest.raises(NoDevice, match="reference:3"):
        InferenceContext("reference:3", registry(0))


def test_no_location() -> None:
    for text in ("not a device", "reference:", ""):
        with pytest.raises(MalformedLocation, match="no device"):
            InferenceContext(text, registry(0))


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([[1.0, 1.0]] * 3, "type"),
        (None, "type"),
        (np.ones((2, 2), np.float32), "shape"),
        (np.ones(6, np.float32), "shape"),
        (np.ones((3, 2), np.float64), "dtype"),
        (np.ones((3, 2), np.int64), "dtype"),
    ],
)
def test_data_of_another_shape_or_type_is_refused(value: np.ndarray, field: str) -> None:
    graph, x, y = doubled()
    with pytest.raises(BindingMismatch) as caught:
        InferenceContext("reference", registry(0)).realize(
            graph, [y.id], Bindings(data={x.id: value}), SymEnv({ROWS: 3})
        )
    assert caught.value.field == field


def test_data_that_fits_without_loss_is_taken() -> None:
    graph, x, y = doubled()
    bindings = Bindings(data={x.id: np.ones((1, 4), np.float16)[:, ::2]})
    (result,) = InferenceContext("reference", registry(0)).realize(graph, [y.id], bindings, SymEnv({ROWS: 1}))
    assert result.tolist() == [[2, 2]]


def test_what_is_read_must_be_bound() -> None:
    graph, x, _ = doubled()
    weight = graph.const("w", ConstRole.WEIGHT, (2, 2))
    slab = graph.const("k", ConstRole.SLAB, (1, 1, 2, 2))
    context = InferenceContext("reference", registry(0))
    data = Bindings(data={x.id: np.ones((1, 2), np.float32)})
    for root, label in ((x, "x"), (linear(x, weight), "w"), (slab + 1.0, "k")):
        with pytest.raises(UnboundConst, match=f"'{label}'"):
            context.realize(graph, [root.id], Bindings() if label == "x" else data, SymEnv({ROWS: 1}))


def slab_storage(**changes: object) -> Storage:
    array = np.zeros(16, np.float32)
    whole = Storage(Location("reference"), DType.F32, enc.F32, (Part("values", array.nbytes, array),))
    return replace(whole, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"dtype": DType.F16}, "dtype"),
        ({"encoding": enc.Q8_0}, "encoding"),
        ({"parts": (Part("values", 60, np.zeros(15, np.float32)),)}, "extent"),
    ],
)
def test_a_slab_of_another_kind_is_refused(
    changes: dict[str, object], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        graph = Graph()
        slab = graph.const("k", ConstRole.SLAB, (1, 1, 4, 4))
        cache = storage_cache.StorageCache()
        with pytest.raises(BindingMismatch) as caught:
            cache.bind(graph.id, slab.node, slab_storage(**changes))
        assert caught.value.field == field
        assert len(cache) == 0
        cache.bind(graph.id, slab.node, slab_storage())
        assert cache.get(graph.id, slab.id) is not None

    goes_red(monkeypatch, storage_cache, "check_binding", nothing, check)


class ChangingRegistry(Registry):
    """Devices come while plans are being made, `changes` times."""

    changes = 0

    def snapshot(self) -> TopologySnapshot:
        before = super().snapshot()
        if self.changes:
            self.changes -= 1
            self.register(ReferenceDevice(100 + self.changes))
        return before


def test_a_topology_that_changes_costs_a_fresh_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        devices = ChangingRegistry()
        devices.register(ReferenceDevice())
        devices.changes = 2
        graph, x, y = doubled()
        plans = []

        def counting(*arguments: object, **keywords: object) -> object:
            plans.append(arguments)
            return optimize(*arguments, **keywords)  # type: ignore[arg-type]

        optimize = context_module.optimize
        with monkeypatch.context() as patch:
            patch.setattr(context_module, "optimize", counting)
            (result,) = InferenceContext("reference", devices).realize(
                graph, [y.id], Bindings(data={x.id: np.ones((1, 2), np.float32)}), SymEnv({ROWS: 1})
            )
        assert result.tolist() == [[2, 2]]
        assert len(plans) == 3

    goes_red(monkeypatch, Registry, "check_generation", nothing, check)


def test_values_cross_devices() -> None:
    graph, x, y = doubled()
    z = y * y
    context = InferenceContext("reference:0", registry(0, 1))
    (result,) = context.realize(
        graph, [z.id], Bindings(data={x.id: np.full((2, 2), 3, np.float32)}), SymEnv({ROWS: 2}),
        hints={z.id: Location("reference", 1)},
    )  # fmt: skip
    assert result.tolist() == [[36, 36]] * 2


def test_what_crosses_devices_is_written_where_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer that was bound is the one that runs use: a run uploads this step's data and nothing else."""
    graph, x, y = doubled()
    z = y * y
    context = InferenceContext("reference:0", registry(0, 1))
    env = SymEnv({ROWS: 2})
    plan = context.plan(graph, [z.id], bounds=env, hints={z.id: Location("reference", 1)})
    data = {x.id: np.full((2, 2), 3, np.float32)}
    cache = context.bind(plan, Bindings(data=data), env)
    bound = context.compile(plan).bind(cache.of_graph(plan.graph_id), env)
    made: list[str] = []
    for name in ("upload", "allocate"):
        real = getattr(ReferenceDevice, name)

        def counting(*arguments: object, real: object = real, name: str = name) -> object:
            made.append(name)
            return real(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(ReferenceDevice, name, counting)
    for value in (3.0, 5.0):
        (result,) = context.realize_prebuilt(bound, {}, env, plan.roots).values()
        assert result.tolist() == [[36, 36]] * 2
        assert made == []
        overlay = {x.id: np.full((1, 2), value, np.float32)}
        (result,) = context.realize_prebuilt(bound, overlay, SymEnv({ROWS: 1}), plan.roots).values()
        assert result.tolist() == [[(2 * value) ** 2] * 2]
        # `upload` of the reference device allocates for itself
        assert made == ["upload"]
        made.clear()


def test_counts_of_ended_threads_are_kept_as_one_sum() -> None:
    counters = Counters()

    def count() -> None:
        counters.mine.realize_calls += 1
        counters.mine.bytes_bound += 10

    count()
    for _ in range(50):
        thread = threading.Thread(target=count)
        thread.start()
        thread.join()
    assert counters.total().realize_calls == 51
    assert counters.total().bytes_bound == 510
    assert len(counters._running) == 1  # this thread's
    running = threading.Barrier(3)
    threads = [threading.Thread(target=lambda: (count(), running.wait(10), running.wait(10))) for _ in "ab"]
    for thread in threads:
        thread.start()
    running.wait(10)
    assert counters.total().realize_calls == 53
    assert len(counters._running) == 3
    running.wait(10)
    for thread in threads:
        thread.join()
    assert counters.total().realize_calls == 53
