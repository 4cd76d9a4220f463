"""Realising: what is bound, what is refused, and a topology that changes meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ostinato.device.storage import Part, Storage
from ostinato.device.topology import TopologySnapshot
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import BindingMismatch, NoDevice, UnboundConst
from ostinato.ir import ConstRole, DType, Graph, Location, SymEnv, SymId, Tensor, linear
from ostinato.ir import encoding as enc
from ostinato.runtime import context as context_module
from ostinato.runtime import storage_cache
from ostinato.runtime.context import Bindings, InferenceContext
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


@pytest.mark.parametrize(
    ("value", "field"),
    [
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
