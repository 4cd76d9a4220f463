"""Binding, running and freezing a segment, on each shipped device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from devices.frail import FrailCpu
from devices.running import const, piece, slab_encoding
from ostinato.device.contract import CaptureRefusal, OpenCapture, fitting, view_of
from ostinato.device.encoded import EncodedTensor
from ostinato.device.segment import Segment
from ostinato.device.storage import Storage
from ostinato.devices.cpu import program as cpu_module
from ostinato.devices.cpu.program import CpuCapture
from ostinato.devices.reference import device as device_module
from ostinato.devices.reference import program as reference_module
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.devices.reference.program import ReferenceCapture
from ostinato.errors import (
    BindingMismatch,
    DeviceMismatch,
    IndexOutOfRange,
    NoKernel,
    NotVarying,
    UnboundConst,
    UnboundSymbol,
    WorkspaceBusy,
)
from ostinato.ir import ConstRole, DType, Graph, Location, PackRecipe, SymEnv, SymId
from ostinato.ir import encoding as enc
from ostinato.ir.ops.slab import WriteSlice, WriteSliceDevice
from ostinato.ir.shape import NodeId
from ostinato.plan.optimize import optimize
from ostinato.runtime.registry import Registry
from sabotage import NOTICED, goes_red, nothing

ROWS = SymId("rows")
SLAB = (1, 1, 8, 4)

DEVICES: dict[str, Callable[..., Any]] = {"reference": ReferenceDevice, "cpu": FrailCpu}
MODULES: dict[str, Any] = {"reference": reference_module, "cpu": cpu_module}
UNCHECKED: dict[str, Callable[..., Any]] = {
    "reference": lambda self, values: {node: values.get(node, 0) for node in self._varying},
    "cpu": lambda self, values: [
        (buffer, values.get(node, 0)) for node, (_, buffer) in self._varying.items()
    ],
}
CAPTURES: dict[str, type] = {"reference": ReferenceCapture, "cpu": CpuCapture}

by_kind = pytest.mark.parametrize("kind", DEVICES)


class Case:
    """y = x · w over `[rows, 4]`, with a slab write beside it; at most two rows."""

    def __init__(self, kind: str, by_symbol: bool = False) -> None:
        self.kind = kind
        self.device = DEVICES[kind]()
        devices = Registry()
        devices.register(self.device)
        self.graph = Graph()
        self.x = self.graph.const("x", ConstRole.DATA, (ROWS, 4))
        self.w, _ = const(self.graph, np.arange(4, dtype=np.float32))
        encoding = slab_encoding(self.device, enc.F32, "k")
        self.slab = self.graph.const("slab", ConstRole.SLAB, SLAB, DType.F32, encoding)
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
        self.slots = self.fresh()
        self.outputs = {y.id: self.device.upload(np.zeros(8, np.float32), DType.F32)}

    def fresh(self, x: float = 1) -> dict[NodeId, Storage | None]:
        """Storages of their own for everything that comes from outside."""
        up = self.device.upload
        return {
            self.x.id: up(np.full(8, x, np.float32), DType.F32),
            self.w.id: up(np.arange(4, dtype=np.float32), DType.F32),
            self.slab.id: self.device.allocate_slab(SLAB, enc.F32, "k"),
            self.start.id: up(np.array([1], np.int64), DType.I64),
            self.count.id: up(np.array([2], np.int64), DType.I64),
        }

    def bind(self, **changes: Any) -> Any:
        slots = {**self.slots, **changes.get("slots", {})}
        outputs = {**self.outputs, **changes.get("outputs", {})}
        workspace = changes.get("workspace") or self.program.workspace()
        return self.program.bind({k: v for k, v in slots.items() if v}, workspace, outputs)

    def set_count(self, count: int) -> None:
        self.device.write(np.array([count]), self.slots[self.count.id])

    @property
    def out(self) -> list[float]:
        result: list[float] = self.device.download(self.outputs[self.y.id], (8,)).tolist()
        return result

    @property
    def cells(self) -> np.ndarray:
        """Of the slab: `[8, 4]`."""
        cells: np.ndarray = self.device.download(self.slots[self.slab.id], SLAB)[0, 0]
        return cells


@by_kind
def test_a_bound_program_runs_any_number_of_rows_up_to_its_bound(kind: str) -> None:
    case = Case(kind)
    bound = case.bind()
    case.set_count(1)
    bound.run(SymEnv({ROWS: 1})).wait()
    assert case.out == [0, 1, 2, 3, 0, 0, 0, 0]
    case.set_count(2)
    bound.run(SymEnv({ROWS: 2})).wait()
    assert case.out == [0, 1, 2, 3] * 2
    assert case.cells[1:3].tolist() == [[0, 1, 2, 3]] * 2
    assert not case.cells[3:].any()
    with pytest.raises(UnboundSymbol):
        bound.run(SymEnv())
    with pytest.raises(BindingMismatch, match="extent"):
        bound.run(SymEnv({ROWS: 3}))


def up(case: Case, dtype: DType, count: int = 8) -> Storage:
    storage: Storage = case.device.upload(np.ones(count, dtype.numpy), dtype)
    return storage


def shorter(storage: Storage | None) -> Storage:
    assert storage is not None
    (part,) = storage.parts
    return replace(storage, parts=(piece(part, part.role, 0, part.nbytes - storage.dtype.nbytes),))


WRONG: dict[str, tuple[type[Exception], Callable[[Case], dict[str, object]]]] = {
    "missing": (UnboundConst, lambda c: {"slots": {c.x.id: None}}),
    "dtype": (BindingMismatch, lambda c: {"slots": {c.x.id: up(c, DType.F16)}}),
    "encoding": (
        BindingMismatch,
        lambda c: {"slots": {c.w.id: replace(up(c, DType.F32, 4), encoding=enc.Q8_0)}},
    ),
    "location": (
        DeviceMismatch,
        lambda c: {"slots": {c.x.id: replace(up(c, DType.F32), location=Location(c.kind, 1))}},
    ),
    "kind": (
        DeviceMismatch,
        lambda c: {"slots": {c.x.id: replace(up(c, DType.F32), location=Location("elsewhere", 0))}},
    ),
    "extent": (BindingMismatch, lambda c: {"slots": {c.slab.id: shorter(c.slots[c.slab.id])}}),
    "extent of data": (BindingMismatch, lambda c: {"slots": {c.w.id: shorter(c.slots[c.w.id])}}),
    "output": (UnboundConst, lambda c: {"outputs": {c.y.id: None}}),
    "output dtype": (BindingMismatch, lambda c: {"outputs": {c.y.id: up(c, DType.I64)}}),
    "workspace": (
        DeviceMismatch,
        lambda c: {"workspace": replace(c.program.workspace(), location=Location(c.kind, 1))},
    ),
}


@pytest.mark.parametrize("name", WRONG)
@by_kind
def test_binding_checks_everything_before_anything_runs(kind: str, name: str) -> None:
    error, change = WRONG[name]
    case = Case(kind)
    with pytest.raises(error):
        case.bind(**change(case))
    assert not any(case.out)


@pytest.mark.parametrize("name", ["dtype", "encoding", "location", "extent"])
@by_kind
def test_without_the_binding_check_it_is_missed(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unchecked(slot: Any, storages: dict[Any, Any], location: object) -> Any:
        storage = storages[slot.node]
        return storage if kind == "cpu" else storage.parts[0].data

    guard = ("check_extent", nothing) if (kind, name) == ("cpu", "extent") else ("checked", unchecked)
    goes_red(
        monkeypatch, MODULES[kind], *guard,
        lambda: test_binding_checks_everything_before_anything_runs(kind, name),
    )  # fmt: skip


@by_kind
def test_a_run_checks_what_it_is_given_before_it_starts(kind: str) -> None:
    """Another run's data, and room for as many rows as it has; what was bound is as it was."""
    case = Case(kind)
    bound = case.bind()
    wrong = [
        ({case.x.id: up(case, DType.F16)}, BindingMismatch),
        ({case.x.id: up(case, DType.F32, 7)}, BindingMismatch),
        ({case.x.id: replace(up(case, DType.F32), location=Location(kind, 1))}, DeviceMismatch),
        ({case.start.id: shorter(case.slots[case.start.id])}, BindingMismatch),
    ]
    for overlay, error in wrong:
        with pytest.raises(error):
            bound.run(SymEnv({ROWS: 2}), overlay)
        assert not any(case.out)
        assert not case.cells.any()
    small = case.bind(outputs={case.y.id: up(case, DType.F32, 4)})
    with pytest.raises(BindingMismatch, match="extent"):
        small.run(SymEnv({ROWS: 2}))
    assert not case.cells.any()
    bound.run(SymEnv({ROWS: 2}))
    assert case.out == [0, 1, 2, 3] * 2


def check_rows_beyond_the_bound() -> None:
    """The arena has room for two rows, whatever is bound has room for."""
    case = Case("cpu")
    bound = case.bind(
        slots={case.x.id: up(case, DType.F32, 12)}, outputs={case.y.id: up(case, DType.F32, 12)}
    )
    with pytest.raises(BindingMismatch, match="rows"):
        bound.run(SymEnv({ROWS: 3}))
    assert not case.cells.any()


def test_no_run_has_more_rows_than_the_arena_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(monkeypatch, cpu_module, "check_bounds", nothing, check_rows_beyond_the_bound)


@by_kind
def test_a_workspace_runs_one_thing_at_a_time(kind: str) -> None:
    case = Case(kind)
    workspace = case.program.workspace()
    bound = case.bind(workspace=workspace)
    with workspace.in_flight, pytest.raises(WorkspaceBusy):
        bound.run(SymEnv({ROWS: 2}))
    assert not any(case.out)
    bound.run(SymEnv({ROWS: 2}))
    # a failed run leaves the workspace free
    with pytest.raises(UnboundSymbol):
        bound.run(SymEnv())
    bound.run(SymEnv({ROWS: 2}))


@by_kind
def test_a_program_is_shared_by_threads(kind: str) -> None:
    case = Case(kind)
    results: list[list[float]] = []

    def work(value: float) -> None:
        out = up(case, DType.F32)
        bound = case.program.bind(case.fresh(value), case.program.workspace(), {case.y.id: out})
        for _ in range(50):
            bound.run(SymEnv({ROWS: 2})).wait()
            results.append(case.device.download(out, (8,)).tolist())
            assert results[-1] == [0, value, 2 * value, 3 * value] * 2

    threads = [threading.Thread(target=work, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 4 * 50


@by_kind
def test_a_capture_replays_with_new_values_at_fixed_addresses(kind: str) -> None:
    case = Case(kind)
    captured = case.bind().freeze([case.x.id, case.start.id], SymEnv({ROWS: 2}))
    assert not isinstance(captured, CaptureRefusal)
    for start, value in ((0, 1.0), (4, 2.0)):
        captured.replay(
            {case.x.id: np.full((2, 4), value, np.float32), case.start.id: np.array(start)}
        ).wait()
        assert case.out[1] == value
        assert case.cells[start, 1] == value


def check_runs_between_replays(kind: str, in_place: bool) -> None:
    """With other data, other rows, and ones that were refused: a capture replays what it recorded."""
    case = Case(kind)
    bound = case.bind()
    captured = bound.freeze([case.x.id, case.start.id], SymEnv({ROWS: 2}))
    assert not isinstance(captured, CaptureRefusal)
    again = bound.freeze([case.x.id], SymEnv({ROWS: 1}))
    assert not isinstance(again, CaptureRefusal)

    ones = np.ones((2, 4), np.float32)

    def unbound() -> None:
        with pytest.raises(UnboundSymbol):
            bound.run(SymEnv())

    def refused() -> None:
        overlay = {case.x.id: up(case, DType.F32), case.start.id: up(case, DType.F16, 1)}
        with pytest.raises(BindingMismatch):
            bound.run(SymEnv({ROWS: 2}), overlay)

    between = (
        lambda: None,
        lambda: bound.run(SymEnv({ROWS: 2}), {case.w.id: up(case, DType.F32, 4)}).wait(),
        lambda: (case.set_count(1), bound.run(SymEnv({ROWS: 1})).wait(), case.set_count(2)),
        refused,
        unbound,
        lambda: (case.set_count(1), again.replay({case.x.id: ones[:1]}).wait(), case.set_count(2)),
    )
    for at, run in enumerate(between):
        run()
        if in_place:
            assert isinstance(captured, OpenCapture)
            captured.buffers[case.x.id][...] = ones * (at + 2)
            captured.buffers[case.start.id][...] = at
            captured.run().wait()
        else:
            captured.replay({case.x.id: ones * (at + 2), case.start.id: np.array(at)}).wait()
        assert case.out == [0, at + 2, 2 * (at + 2), 3 * (at + 2)] * 2
        assert case.cells[at].tolist() == case.out[:4]


@pytest.mark.parametrize(
    ("kind", "in_place"), [("reference", False), ("reference", True), ("cpu", False), ("cpu", True)]
)
def test_runs_between_replays_change_nothing_of_a_capture(kind: str, in_place: bool) -> None:
    check_runs_between_replays(kind, in_place)


@pytest.mark.parametrize("in_place", [False, True])
def test_without_a_look_a_capture_replays_another_run_s(
    in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_red(
        monkeypatch, CpuCapture, "is_prepared", property(lambda self: True),
        lambda: check_runs_between_replays("cpu", in_place), expect=(*NOTICED, IndexOutOfRange),
    )  # fmt: skip


@by_kind
def test_a_capture_refuses_what_it_could_not_replay(kind: str) -> None:
    refusal = Case(kind, by_symbol=True).bind().freeze([], SymEnv({ROWS: 2, SymId("start"): 0}))
    assert isinstance(refusal, CaptureRefusal)
    assert "symbol" in refusal.reason
    case = Case(kind)
    assert isinstance(case.bind().freeze([case.y.id], SymEnv({ROWS: 2})), CaptureRefusal)


class Frozen:
    """A capture of `Case` with x and start varying, and what its buffers hold."""

    def __init__(self, kind: str) -> None:
        self.case = Case(kind)
        self.case.set_count(1)
        self.workspace = self.case.program.workspace()
        captured = self.case.bind(workspace=self.workspace).freeze(
            [self.case.x.id, self.case.start.id], SymEnv({ROWS: 1})
        )
        assert not isinstance(captured, CaptureRefusal)
        self.captured = captured
        self.values = {self.case.x.id: np.full((1, 4), 7, np.float32), self.case.start.id: np.array(3)}

    def buffers(self) -> list[list[float]]:
        case = self.case
        return [
            case.device.download(case.slots[node], shape).tolist()
            for node, shape in ((case.x.id, (8,)), (case.start.id, (1,)))
        ]


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
@by_kind
def test_a_replay_checks_all_values_before_it_writes_one(kind: str, name: str) -> None:
    error, change = REPLAYS[name]
    frozen = Frozen(kind)
    before = frozen.buffers()
    with pytest.raises(error):
        frozen.captured.replay(change(frozen))
    assert frozen.buffers() == before
    assert not any(frozen.case.out)
    frozen.captured.replay(frozen.values).wait()
    assert frozen.case.out == [0, 7, 14, 21, 0, 0, 0, 0]


@by_kind
def test_a_replay_writes_nothing_that_a_run_in_flight_reads(kind: str) -> None:
    frozen = Frozen(kind)
    before = frozen.buffers()
    with frozen.workspace.in_flight, pytest.raises(WorkspaceBusy):
        frozen.captured.replay(frozen.values)
    assert frozen.buffers() == before
    frozen.captured.replay(frozen.values).wait()
    assert frozen.buffers() == [[7, 7, 7, 7, 1, 1, 1, 1], [3]]


@by_kind
def test_an_open_capture_runs_what_its_buffers_hold(kind: str) -> None:
    frozen = Frozen(kind)
    captured, case = frozen.captured, frozen.case
    assert isinstance(captured, OpenCapture)
    assert set(captured.buffers) == {case.x.id, case.start.id}
    captured.buffers[case.x.id][...] = 5
    captured.buffers[case.start.id][...] = 6
    with frozen.workspace.in_flight, pytest.raises(WorkspaceBusy):
        captured.run()
    assert not any(case.out)
    captured.run().wait()
    assert case.out == [0, 5, 10, 15, 0, 0, 0, 0]
    assert case.cells[6].tolist() == [0, 5, 10, 15]
    captured.replay(frozen.values).wait()
    assert case.out == [0, 7, 14, 21, 0, 0, 0, 0]


@by_kind
def test_without_its_check_a_replay_writes_by_halves(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch, CAPTURES[kind], "check", UNCHECKED[kind],
        lambda: test_a_replay_checks_all_values_before_it_writes_one(kind, "one is missing"),
    )  # fmt: skip


@by_kind
def test_a_view_is_the_storage_s_memory_and_can_t_be_written(kind: str) -> None:
    device = DEVICES[kind]()
    held = device.upload(np.arange(6, dtype=np.float32), DType.F32)
    view = view_of(device, held, (2, 2))
    assert view is not None
    assert view.tolist() == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 9
    device.write(np.full(6, 7, np.float32), held)
    assert view.tolist() == [[7, 7], [7, 7]]
    with pytest.raises(DeviceMismatch):
        view_of(DEVICES[kind](1), held, (6,))


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
