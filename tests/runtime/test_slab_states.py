"""Slabs change in place, graphs don't: every value of a graph is what a run without in-place writes gives."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.devices.reference import kernels
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.ir import ConstRole, DType, Graph, Location, Operand, SymEnv, Tensor
from ostinato.ir.ops import movement
from ostinato.ir.ops.slab import ReadPrefix, WriteSlice
from ostinato.plan import optimize
from ostinato.runtime.context import Bindings, InferenceContext
from ostinato.runtime.registry import Registry
from sabotage import goes_red, nothing

SHAPE = (1, 1, 4, 2)
PLACES = (Location("reference", 0), Location("reference", 1))


def two_devices() -> InferenceContext:
    devices = Registry()
    for place in PLACES:
        devices.register(ReferenceDevice(place.ordinal))
    return InferenceContext(PLACES[0], devices)


class Program:
    """A graph, and beside each node the array that it should be."""

    def __init__(self, slabs: int = 2, split: bool = False) -> None:
        self.context = two_devices()
        self.graph = Graph()
        self.numbers = itertools.count(1)
        self.hints: dict[int, Location] = {}
        self.expected: dict[int, np.ndarray] = {}
        self.slabs = [self.graph.const(f"k{i}", ConstRole.SLAB, SHAPE) for i in range(slabs)]
        self.storages = {}
        for i, slab in enumerate(self.slabs):
            place = PLACES[i % 2] if split else PLACES[0]
            self.hints[slab.id] = place
            start = self.fresh(SHAPE)
            device = self.context.devices.device(place)
            self.storages[slab.id] = device.upload(start, DType.F32)
            self.expected[slab.id] = start
        rows = self.graph.const("rows", ConstRole.DATA, (2, 1, 2))
        self.expected[rows.id] = self.fresh((2, 1, 2))
        self.states = [[slab] for slab in self.slabs]
        self.values = [rows]
        self.rows = rows

    def fresh(self, shape: tuple[int, ...]) -> np.ndarray:
        size = int(np.prod(shape))
        return np.arange(size, dtype=np.float32).reshape(shape) + 100.0 * next(self.numbers)

    def read(self, state: Tensor, at: int) -> Tensor:
        """Two positions as rows [2, 1, 2], through views alone."""
        seen = state.apply(ReadPrefix(at + 2)).slice(2, at, at + 2).reshape(1, 2, 2).transpose(1, 0, 2)
        return self.add(seen, self.expected[state.id][0, :, at : at + 2].transpose(1, 0, 2))

    def write(self, slab: int, at: int, rows: Tensor) -> Tensor:
        state = self.states[slab][-1]
        after = self.expected[state.id].copy()
        after[0, :, at : at + 2] = self.expected[rows.id].transpose(1, 0, 2)
        written = state.apply(WriteSlice(at, 2), rows)
        self.states[slab].append(written)
        self.expected[written.id] = after
        return written

    def combine(self, a: Tensor, b: Tensor) -> Tensor:
        return self.add(a * 0.5 + b, self.expected[a.id] * np.float32(0.5) + self.expected[b.id])

    def add(self, value: Tensor, expected: np.ndarray) -> Tensor:
        self.values.append(value)
        self.expected[value.id] = expected
        return value

    def check(self, *roots: Tensor) -> None:
        bindings = Bindings(slabs=self.storages, data={self.rows.id: self.expected[self.rows.id]})
        results = self.context.realize(
            self.graph, [root.id for root in roots], bindings, SymEnv(), hints=self.hints
        )
        for root, result in zip(roots, results, strict=True):
            np.testing.assert_array_equal(result, self.expected[root.id], err_msg=repr(root))
        for slab, states in zip(self.slabs, self.states, strict=True):  # the last write is what stays
            storage = self.storages[slab.id]
            held = self.context.devices.device(storage.location).download(storage, SHAPE)
            np.testing.assert_array_equal(held, self.expected[states[-1].id])


def root_view() -> None:
    p = Program()
    before = p.read(p.slabs[0], 0)
    p.write(0, 0, p.rows)
    p.check(before)


def root_state() -> None:
    p = Program()
    p.write(0, 0, p.rows)
    p.check(p.slabs[0], p.states[0][-1])


def consumer() -> None:
    p = Program()
    before = p.read(p.slabs[0], 0)
    p.write(0, 0, p.rows)
    p.check(p.combine(before, before))


def reader_that_needs_the_write() -> None:
    p = Program()
    before = p.read(p.slabs[0], 0)
    after = p.read(p.write(0, 0, p.rows), 0)
    p.check(p.combine(after, before))


def old_state_on_another_device() -> None:
    p = Program()
    before = p.read(p.slabs[0], 0)
    p.write(0, 0, p.rows)
    far = p.combine(before, before)
    p.hints[far.id] = PLACES[1]
    p.check(far, before)


CASES = [root_view, root_state, consumer, reader_that_needs_the_write, old_state_on_another_device]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_old_states_are_kept(case: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(monkeypatch, optimize, "keep_old_states", nothing, case)


def test_a_view_is_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    reader_that_needs_the_write()
    monkeypatch.setitem(kernels.KERNELS, movement.Clone, lambda op, env, x: x)
    with pytest.raises(AssertionError):
        reader_that_needs_the_write()


def test_a_length_that_the_write_decides() -> None:
    """The view itself needs the write, so the whole state is kept."""
    p = Program()
    slab = p.slabs[0]
    ones = p.graph.const("ones", ConstRole.DATA, (2, 1, 2))
    written = slab.apply(WriteSlice(0, 2), ones)
    length = written.apply(ReadPrefix(2)).sum(-1).sum(-2).reshape().cast(DType.I64)  # 2 · 2 ones = 4
    total = slab.apply(ReadPrefix(Operand(1)), length).sum(-2).sum(-1)
    before = p.expected[slab.id].sum()
    bindings = Bindings(slabs=p.storages, data={ones.id: np.ones((2, 1, 2), np.float32)})
    (result,) = p.context.realize(p.graph, [total.id], bindings, SymEnv())
    assert result.item() == before


def test_a_write_that_reads_what_it_overwrites() -> None:
    p = Program()
    p.write(0, 1, p.read(p.slabs[0], 0))  # overlapping rows
    p.write(0, 0, p.read(p.states[0][-1], 2))
    p.check(p.states[0][-1])


moves = st.tuples(st.sampled_from("rrwwcc"), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
compared: Counter[str] = Counter()


@settings(max_examples=150)
@given(st.lists(moves, min_size=3, max_size=16), st.booleans(), st.sets(st.integers(0, 30)), st.data())
def test_any_reads_and_writes(
    program: list[tuple[str, int, int, int]], split: bool, far: set[int], data: st.DataObject
) -> None:
    p = Program(split=split)
    for kind, i, j, k in program:
        slab = k % 2
        if kind == "r":
            p.read(p.states[slab][i % len(p.states[slab])], j % 3)
        elif kind == "w":
            p.write(slab, j % 3, p.values[i % len(p.values)])
        else:
            p.combine(p.values[i % len(p.values)], p.values[j % len(p.values)])
        compared[kind] += 1
    if split:
        p.hints |= {value.id: PLACES[1] for n, value in enumerate(p.values) if n in far and n}
    roots = [*p.values, *itertools.chain(*p.states)]
    p.check(*data.draw(st.lists(st.sampled_from(roots), min_size=1, unique_by=id)))


def test_that_was_enough() -> None:
    assert min(compared[kind] for kind in "rwc") > 100
