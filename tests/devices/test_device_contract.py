"""Binding, running and freezing a segment on the reference device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from running import const, storage

from ostinato.device.contract import CaptureRefusal, fitting, view_of
from ostinato.device.encoded import EncodedTensor
from ostinato.device.segment import Segment
from ostinato.devices.reference import device as device_module
from ostinato.devices.reference import program as program_module
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.devices.reference.program import ReferenceCapture, ReferenceProgram, ReferenceWorkspace
from ostinato.errors import (
    BindingMismatch,
    DeviceMismatch,
    NoKernel,
    NotVarying,
    UnboundConst,
    UnboundSymbol,
    WorkspaceBusy,
)
from ostinato.ir import ConstRole, DType, Graph, Location, PackRecipe, SymEnv, SymId
from ostinato.ir import encoding as enc
from ostinato.ir.ops.slab import WriteSlice, WriteSliceDevice
from ostinato.plan.optimize import optimize
from ostinato.runtime.registry import Registry
from sabotage import goes_red, nothing

ROWS = SymId("rows")


class Case:
    """y = x · w over `[rows, 4]`, with a slab write beside it."""

    def __init__(self, by_symbol: bool = False) -> None:
        self.device = ReferenceDevice()
        devices = Registry()
        devices.register(self.device)
        self.graph = Graph()
        self.x = self.graph.const("x", ConstRole.DATA, (ROWS, 4))
        self.w, self.w_value = const(self.graph, np.arange(4, dtype=np.float32))
        self.slab = self.graph.const("slab", ConstRole.SLAB, (1, 1, 8, 4))
        y = self.x * self.w
        rows = y.reshape(ROWS, 1, 4)
        self.start, self.count = (
            self.graph.const(n, ConstRole.DATA, (), DType.I64) for n in ("start", "count")
        )
        if by_symbol:
            self.slab.apply(WriteSlice(SymId("start"), ROWS), rows)
        else:
            self.slab.apply(WriteSliceDevice(), rows, self.start, self.count)
        plan = optimize(
            self.graph, [y.id], devices.snapshot(), default=self.device.location, bounds={ROWS: 2}
        )
        (self.segment,) = [step for step in plan.steps if isinstance(step, Segment)]
        self.program = self.device.compile(self.segment)
        self.y = y
        self.arrays = {
            self.x.id: np.ones(8, np.float32),
            self.w.id: self.w_value,
            self.slab.id: np.zeros(32, np.float32),
            self.start.id: np.array([1], np.int64),
            self.count.id: np.array([2], np.int64),
        }
        self.out = np.zeros(8, np.float32)

    def bind(self, **changes: object) -> program_module.ReferenceBound:
        slots = {node: storage(array) for node, array in self.arrays.items()}
        slots |= changes.get("slots", {})  # type: ignore[operator]
        outputs = {self.y.id: storage(self.out)}
        outputs |= changes.get("outputs", {})  # type: ignore[operator]
        workspace = changes.get("workspace") or self.program.workspace()
        return self.program.bind({k: v for k, v in slots.items() if v}, workspace, outputs)  # type: ignore[arg-type]


def test_a_bound_program_runs_any_number_of_rows_up_to_its_bound() -> None:
    case = Case()
    bound = case.bind()
    case.arrays[case.count.id][:] = 1
    bound.run(SymEnv({ROWS: 1})).wait()
    assert case.out.tolist() == [0, 1, 2, 3, 0, 0, 0, 0]
    case.arrays[case.count.id][:] = 2
    bound.run(SymEnv({ROWS: 2})).wait()
    assert case.out.tolist() == [0, 1, 2, 3] * 2
    assert case.arrays[case.slab.id].reshape(8, 4)[1:3].tolist() == [[0, 1, 2, 3]] * 2
    assert not case.arrays[case.slab.id].reshape(8, 4)[3:].any()
    with pytest.raises(UnboundSymbol):
        bound.run(SymEnv())
    with pytest.raises(BindingMismatch, match="extent"):
        bound.run(SymEnv({ROWS: 3}))


WRONG: dict[str, tuple[type[Exception], Callable[[Case], dict[str, object]]]] = {
    "missing": (UnboundConst, lambda c: {"slots": {c.x.id: None}}),
    "dtype": (BindingMismatch, lambda c: {"slots": {c.x.id: storage(np.ones(8, np.float16))}}),
    "encoding": (
        BindingMismatch,
        lambda c: {"slots": {c.w.id: replace(storage(np.ones(4, np.float32)), encoding=enc.Q8_0)}},
    ),
    "location": (
        DeviceMismatch,
        lambda c: {"slots": {c.x.id: storage(np.ones(8, np.float32), "reference:1")}},
    ),
    "kind": (DeviceMismatch, lambda c: {"slots": {c.x.id: storage(np.ones(8, np.float32), "cpu:0")}}),
    "extent": (BindingMismatch, lambda c: {"slots": {c.slab.id: storage(np.ones(31, np.float32))}}),
    "output": (UnboundConst, lambda c: {"outputs": {c.y.id: None}}),
    "output dtype": (BindingMismatch, lambda c: {"outputs": {c.y.id: storage(np.ones(8, np.int64))}}),
    "workspace": (DeviceMismatch, lambda c: {"workspace": ReferenceWorkspace(Location("reference", 1))}),
}


@pytest.mark.parametrize("name", WRONG)
def test_binding_checks_everything_before_anything_runs(name: str) -> None:
    error, change = WRONG[name]
    case = Case()
    with pytest.raises(error):
        case.bind(**change(case))
    assert not case.out.any()


@pytest.mark.parametrize("name", ["dtype", "encoding", "location", "extent"])
def test_without_the_binding_check_it_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(slot: object, storages: dict[object, object], location: object) -> np.ndarray:
        array: np.ndarray = storages[slot.node].parts[0].data  # type: ignore[attr-defined]
        return array

    goes_red(
        monkeypatch,
        program_module,
        "checked",
        unchecked,
        lambda: test_binding_checks_everything_before_anything_runs(name),
    )


def test_a_workspace_runs_one_thing_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    workspace = case.program.workspace()
    bound = case.bind(workspace=workspace)
    with workspace.in_flight, pytest.raises(WorkspaceBusy):
        bound.run(SymEnv({ROWS: 2}))
    assert not case.out.any()
    bound.run(SymEnv({ROWS: 2}))
    # a failed run leaves the workspace free
    with pytest.raises(UnboundSymbol):
        bound.run(SymEnv())
    bound.run(SymEnv({ROWS: 2}))


def test_a_program_is_shared_by_threads() -> None:
    case = Case()
    assert isinstance(case.program, ReferenceProgram)
    results: list[np.ndarray] = []

    def work(value: float) -> None:
        out = np.zeros(8, np.float32)
        slots = {node: storage(array.copy()) for node, array in case.arrays.items()}
        slots[case.x.id] = storage(np.full(8, value, np.float32))
        bound = case.program.bind(slots, case.program.workspace(), {case.y.id: storage(out)})
        for _ in range(50):
            bound.run(SymEnv({ROWS: 2})).wait()
            assert out.tolist() == [0, value, 2 * value, 3 * value] * 2
        results.append(out)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 4


def test_a_capture_replays_with_new_values_at_fixed_addresses() -> None:
    case = Case()
    captured = case.bind().freeze([case.x.id, case.start.id], SymEnv({ROWS: 2}))
    assert not isinstance(captured, CaptureRefusal)
    for start, value in ((0, 1.0), (4, 2.0)):
        captured.replay(
            {case.x.id: np.full((2, 4), value, np.float32), case.start.id: np.array(start)}
        ).wait()
        assert case.out[1] == value
        assert case.arrays[case.slab.id].reshape(8, 4)[start, 1] == value


def test_a_capture_refuses_what_it_could_not_replay() -> None:
    refusal = Case(by_symbol=True).bind().freeze([], SymEnv({ROWS: 2}))
    assert isinstance(refusal, CaptureRefusal)
    assert "symbol" in refusal.reason
    case = Case()
    assert isinstance(case.bind().freeze([case.y.id], SymEnv({ROWS: 2})), CaptureRefusal)


class Frozen:
    """A capture of `Case` with x and start varying, and what its buffers hold."""

    def __init__(self) -> None:
        self.case = Case()
        self.case.arrays[self.case.count.id][:] = 1
        self.workspace = self.case.program.workspace()
        captured = self.case.bind(workspace=self.workspace).freeze(
            [self.case.x.id, self.case.start.id], SymEnv({ROWS: 1})
        )
        assert not isinstance(captured, CaptureRefusal)
        self.captured = captured
        self.values = {self.case.x.id: np.full((1, 4), 7, np.float32), self.case.start.id: np.array(3)}

    def buffers(self) -> list[list[float]]:
        return [self.case.arrays[node].tolist() for node in (self.case.x.id, self.case.start.id)]


REPLAYS: dict[str, tuple[type[Exception], Callable[[Frozen], dict[object, object]]]] = {
    "one is missing": (UnboundConst, lambda f: {f.case.x.id: f.values[f.case.x.id]}),
    "none is there": (UnboundConst, lambda f: {}),
    "a fixed one": (NotVarying, lambda f: {**f.values, f.case.count.id: np.array(1)}),
    "an unknown one": (NotVarying, lambda f: {**f.values, 99: np.array(1)}),
    "the second's shape": (BindingMismatch, lambda f: {**f.values, f.case.start.id: np.array([3])}),
    "the second's dtype": (BindingMismatch, lambda f: {**f.values, f.case.start.id: np.array(3.0)}),
    "more rows": (BindingMismatch, lambda f: {**f.values, f.case.x.id: np.ones((2, 4), np.float32)}),
    "flat": (BindingMismatch, lambda f: {**f.values, f.case.x.id: np.ones(4, np.float32)}),
    "a list": (BindingMismatch, lambda f: {**f.values, f.case.start.id: 3}),
}


@pytest.mark.parametrize("name", REPLAYS)
def test_a_replay_checks_all_values_before_it_writes_one(name: str) -> None:
    error, change = REPLAYS[name]
    frozen = Frozen()
    before = frozen.buffers()
    with pytest.raises(error):
        frozen.captured.replay(change(frozen))  # type: ignore[arg-type]
    assert frozen.buffers() == before
    assert not frozen.case.out.any()
    frozen.captured.replay(frozen.values).wait()
    assert frozen.case.out.tolist() == [0, 7, 14, 21, 0, 0, 0, 0]


def test_a_replay_writes_nothing_that_a_run_in_flight_reads() -> None:
    frozen = Frozen()
    before = frozen.buffers()
    with frozen.workspace.in_flight, pytest.raises(WorkspaceBusy):
        frozen.captured.replay(frozen.values)
    assert frozen.buffers() == before
    frozen.captured.replay(frozen.values).wait()
    assert frozen.buffers() == [[7, 7, 7, 7, 1, 1, 1, 1], [3]]


def test_without_its_check_a_replay_writes_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch,
        ReferenceCapture,
        "check",
        lambda self, values: {node: values.get(node, 0) for node in self._varying},
        lambda: test_a_replay_checks_all_values_before_it_writes_one("one is missing"),
    )


def test_a_view_is_the_storage_s_memory_and_can_t_be_written() -> None:
    device = ReferenceDevice()
    held = device.upload(np.arange(6, dtype=np.float32), DType.F32)
    view = view_of(device, held, (2, 2))
    assert view is not None
    assert view.tolist() == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 9
    device.write(np.full(6, 7, np.float32), held)
    assert view.tolist() == [[7, 7], [7, 7]]
    with pytest.raises(DeviceMismatch):
        view_of(ReferenceDevice(1), held, (6,))


def test_a_device_needn_t_have_views() -> None:
    from devices.delayed import DelayedDevice

    device = DelayedDevice()
    assert view_of(device, device.upload(np.zeros(2, np.float32), DType.F32), (2,)) is None


@pytest.mark.parametrize(
    "value",
    [np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32).T, np.zeros((2, 3), np.float16),
     np.zeros((2, 3), ">f4"), np.zeros((2, 6), np.float32)[:, ::2], np.ma.zeros((2, 3), np.float32)],
    ids=["right", "transposed", "narrower", "big endian", "strided", "a subclass"],
)  # fmt: skip
def test_what_fits_arrives_contiguous_and_of_the_type(value: np.ndarray) -> None:
    fitted = fitting("x", value, (2, 3), DType.F32)
    assert fitted.flags.c_contiguous
    assert fitted.dtype == np.dtype("=f4")
    assert fitted.shape == (2, 3)


def test_packing_takes_exactly_what_the_recipe_says(monkeypatch: pytest.MonkeyPatch) -> None:
    device = ReferenceDevice()
    a, b = (EncodedTensor(n, (1,), enc.F32, np.float32([i]).view(np.uint8)) for i, n in enumerate("ab"))

    def check() -> None:
        for tensors in ([b, a], [a], [a, b, a], []):
            with pytest.raises(BindingMismatch, match=r"a \+ b"):
                device.pack(PackRecipe(("a", "b"), "dense"), tensors)
        with pytest.raises(NoKernel, match="'interleaved'"):
            device.pack(PackRecipe(("a", "b"), "dense", "interleaved"), [a, b])
        # the layout is another device's business
        packed = device.pack(PackRecipe(("a", "b"), "tiles"), [a, b])
        assert device.download(packed, (2,)).tolist() == [0, 1]

    goes_red(monkeypatch, device_module, "check_recipe", nothing, check)


def test_packing_decodes_reorders_and_joins() -> None:
    device = ReferenceDevice()
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    raw = values.view(np.uint8).reshape(3, 16)
    plain = EncodedTensor("a", (3, 4), enc.F32, raw)
    turned = EncodedTensor("b", (3, 4), enc.F32, raw, np.array([2, 0, 1]))
    bias = EncodedTensor("c", (3,), enc.F32, values[:, 0].copy().view(np.uint8), np.array([2, 0, 1]))
    packed = device.pack(PackRecipe(("a", "b"), "dense"), [plain, turned])
    np.testing.assert_array_equal(
        device.download(packed, (6, 4)), np.concatenate([values, values[[2, 0, 1]]])
    )
    np.testing.assert_array_equal(
        device.download(device.pack(PackRecipe(("c",), "dense"), [bias]), (3,)), [8, 0, 4]
    )
    unknown = EncodedTensor("d", (1, 256), enc.Q8_K, np.zeros(292, np.uint8))
    with pytest.raises(NoKernel, match="Q8_K"):
        device.pack(PackRecipe(("d",), "dense"), [unknown])
