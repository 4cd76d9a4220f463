"""Fixed storages for a token's data: all written or none, and never those that are bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import BindingMismatch, OutOfDeviceMemory, UnboundConst, WorkspaceBusy
from ostinato.ir import ConstRole, DType, Graph, SymEnv, SymId, Tensor
from ostinato.runtime.compiled import BoundPlan
from ostinato.runtime.context import Bindings, InferenceContext
from ostinato.runtime.registry import Registry
from ostinato.runtime.staging import Staging
from sabotage import goes_red

ROWS = SymId("rows")
ENV = SymEnv({ROWS: 2})


class Case:
    """y = x · scale over `[rows, 2]`, bound to ones, with a staging for both operands."""

    def __init__(self) -> None:
        self.devices = Registry()
        self.devices.register(ReferenceDevice())
        self.context = InferenceContext("reference", self.devices)
        graph = Graph()
        self.x = graph.const("x", ConstRole.DATA, (ROWS, 2)).id
        self.scale = graph.const("scale", ConstRole.DATA, ()).id
        self.dead = graph.const("dead", ConstRole.DATA, (ROWS,), DType.I64).id
        y = Tensor(graph, self.x) * Tensor(graph, self.scale)
        self.plan = self.context.plan(graph, [y.id], bounds=dict(ENV))
        data = {self.x: np.ones((2, 2), np.float32), self.scale: np.float32(1)}
        self.cache = self.context.bind(self.plan, Bindings(data=data), ENV)
        self.bound = self.context.compile(self.plan).bind(self.cache.of_graph(graph.id), ENV)
        self.staging = Staging(self.plan, [self.x, self.dead, self.scale], ENV, self.devices)

    def data(self, x: float, scale: float) -> dict[Any, Any]:
        return {self.x: np.full((2, 2), x, np.float32), self.scale: np.float32(scale)}

    def run(self, overlay: Mapping[Any, Any] | None = None) -> Any:
        (result,) = self.bound.run(ENV, self.plan.roots, overlay).values()
        return result.tolist()

    def staged(self) -> list[list[float]]:
        return [storage.parts[0].data.tolist() for storage in self.staging.overlay.values()]


def test_what_is_written_is_what_a_run_reads_and_what_is_bound_stays() -> None:
    case = Case()
    for x, scale in ((2, 3), (4, 5)):
        assert case.run(case.staging.write(case.data(x, scale))) == [[x * scale] * 2] * 2
        assert case.run() == [[1, 1]] * 2
    assert set(case.staging.overlay) == {case.x, case.scale}  # nothing reads the third
    assert case.staging.nbytes == 4 * 4 + 4
    first = dict(case.staging.overlay)
    case.staging.write(case.data(6, 7))
    assert dict(case.staging.overlay) == first  # the storages, by identity


WRONG: dict[str, tuple[type[Exception], Callable[[Case, dict[Any, Any]], object]]] = {
    "left out": (UnboundConst, lambda case, data: data.pop(case.scale)),
    "another shape": (BindingMismatch, lambda case, data: data.update({case.scale: np.ones(1, np.float32)})),
    "another type": (BindingMismatch, lambda case, data: data.update({case.scale: np.float64(3)})),
    "no array": (BindingMismatch, lambda case, data: data.update({case.scale: 3.0})),
}


def check_all_or_none(name: str) -> None:
    case = Case()
    case.staging.write(case.data(2, 3))
    before = case.staged()
    error, change = WRONG[name]
    data = case.data(8, 9)
    change(case, data)
    with pytest.raises(error, match="scale"):
        case.staging.write(data)
    assert case.staged() == before


@pytest.mark.parametrize("name", WRONG)
def test_all_values_are_checked_before_one_is_written(name: str) -> None:
    check_all_or_none(name)


def test_sabotage_a_value_left_out_would_be_the_last_run_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: Staging, data: Mapping[Any, Any]) -> list[Any]:
        return [data.get(port.node, port.storage.parts[0].data[:1].reshape(())) for port in self._ports]

    goes_red(monkeypatch, Staging, "fitted", careless, lambda: check_all_or_none("left out"))


def test_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()

    def full(*_: object) -> None:
        raise OutOfDeviceMemory("reference:0", 16)

    monkeypatch.setattr(ReferenceDevice, "allocate", full)
    with pytest.raises(OutOfDeviceMemory):
        Staging(case.plan, [case.x], ENV, case.devices)


# One run at a time, from the writing of its inputs to the taking of its results.


def check_exclusive() -> None:
    case = Case()
    case.bound.enter()
    with pytest.raises(WorkspaceBusy, match="reference:0"):
        case.run()
    case.bound.leave()
    assert case.run() == [[1, 1]] * 2


def test_a_bound_plan_is_one_run_s_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_to_all(self: BoundPlan) -> None:
        self._in_use.acquire(blocking=False)

    with monkeypatch.context() as patch:
        patch.setattr(BoundPlan, "leave", lambda self: self._in_use.locked() and self._in_use.release())
        goes_red(monkeypatch, BoundPlan, "enter", open_to_all, check_exclusive)


def test_a_run_that_fails_leaves_it_free() -> None:
    case = Case()
    with pytest.raises(UnboundConst):
        case.run({case.x: None})
    assert case.run() == [[1, 1]] * 2
    runs = case.bound.runs
    case.run()
    assert case.bound.runs == runs + 1
