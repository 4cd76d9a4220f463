"""Values inside a segment share an arena without ever meeting there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scratch import ROWS, Scratch, fused
from test_optimize_passes import segments, slab_graph

from ostinato.device.segment import NO_MEMORY, Segment, Slot
from ostinato.devices.reference.lower import lower
from ostinato.ir import ConstRole, DType, Graph, NodeId, Operand, SymEnv, SymId, Tensor
from ostinato.ir.encoding import plain
from ostinato.ir.graph import Node
from ostinato.ir.ops.slab import ReadPrefix, SlabWrite, WriteSlice
from ostinato.ir.shape import is_sized, resolve
from ostinato.plan import memory
from ostinato.plan.memory import ALIGN, Life, assign
from ostinato.plan.optimized import OptimizedGraph
from sabotage import goes_red

ONE = st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 700))
LIVES = st.lists(ONE.map(lambda life: (life[0], life[0] + life[1], life[2])), max_size=40)


def check_assignment(lives: Sequence[Life], offsets: Sequence[int], total: int) -> None:
    assert len(offsets) == len(lives)
    assert total % ALIGN == 0
    for i, (first, last, nbytes) in enumerate(lives):
        assert offsets[i] % ALIGN == 0
        assert 0 <= offsets[i] <= offsets[i] + nbytes <= total
        for j in range(i):
            other_first, other_last, other = lives[j]
            meet = first <= other_last and other_first <= last
            apart = offsets[i] + nbytes <= offsets[j] or offsets[j] + other <= offsets[i]
            assert not meet or apart or not (nbytes and other), (lives[i], lives[j])


@settings(max_examples=400)
@given(lives=LIVES)
def test_lives_that_meet_lie_apart(lives: list[Life]) -> None:
    check_assignment(lives, *assign(lives))


@given(lives=LIVES)
def test_no_more_than_all_at_once_and_no_less_than_the_widest_moment(lives: list[Life]) -> None:
    _, total = assign(lives)
    sizes = [-(-nbytes // ALIGN) * ALIGN for _, _, nbytes in lives]
    assert total <= sum(sizes)
    for at in range(20):
        assert total >= sum(
            s for (first, last, _), s in zip(lives, sizes, strict=True) if first <= at <= last
        )


def test_a_chain_takes_two_places() -> None:
    lives = [(at, at + 1, 100) for at in range(50)]
    assert assign(lives)[1] == 2 * 128
    assert assign([]) == ([], 0)


def test_the_tightest_gap_is_taken() -> None:
    lives = [(0, 3, 640), (1, 9, 64), (2, 3, 128), (3, 9, 64), (4, 5, 128)]
    offsets, total = assign(lives)
    assert offsets == [0, 640, 704, 832, 704]  # not in the wider place of the first
    assert total == 640 + 64 + 128 + 64


# Of a segment


def where(segment: Segment, node: Node) -> NodeId | None:
    """In whose memory a value lies; None where in a storage of its own, or a size that only the run knows."""
    by_id = {n.id: n for n in segment.nodes}
    outside = {slot.node for slot in segment.outputs}
    while node.op.may_alias and node.id not in outside:
        if node.inputs[0] not in by_id:
            return None
        node = by_id[node.inputs[0]]
    if node.id in outside or isinstance(node.op, SlabWrite) or not is_sized(node.shape):
        return None
    return node.id


def check_segment(segment: Segment) -> None:
    """Lives and places, from the definition: a value's memory is its own from its step to the last that reads
    it or a view of it; an output that is a view is fetched after the last step."""
    plan, outside = segment.memory, {slot.node for slot in segment.outputs}
    env = SymEnv(dict(segment.bounds))
    by_id = {node.id: node for node in segment.nodes}
    lives: dict[NodeId, tuple[int, int]] = {}
    for at, node in enumerate(segment.nodes):
        home = where(segment, node)
        if home == node.id:
            lives[node.id] = (at, at)
        reads = [i for i in node.inputs if i in by_id]
        if home is not None and home != node.id:
            reads.append(home)
        for i in reads:
            root = where(segment, by_id[i])
            if root is not None:
                lives[root] = (lives[root][0], at)
    for slot in segment.outputs:
        node = by_id[slot.node]
        while node.op.may_alias and node.inputs[0] in by_id:
            node = by_id[node.inputs[0]]
        if node.id in lives:
            lives[node.id] = (lives[node.id][0], len(segment.nodes))
    assert set(plan.offsets) == set(lives)
    assert not set(plan.offsets) & outside
    order = list(lives)
    sizes = [int(np.prod(resolve(by_id[i].shape, env), initial=1)) * by_id[i].dtype.nbytes for i in order]
    check_assignment(
        [(*lives[i], size) for i, size in zip(order, sizes, strict=True)],
        [plan.offsets[i] for i in order],
        plan.nbytes,
    )


def random_plan(rng: np.random.Generator, wishes: dict[str, object]) -> OptimizedGraph:
    """Sums, views and reductions of each other, in any order, some of them wanted."""
    graph = Graph()
    values = [graph.const("x", ConstRole.DATA, (ROWS, 8)), graph.const("y", ConstRole.DATA, (ROWS, 8))]
    for _ in range(40):
        a, b = (values[i] for i in rng.integers(max(0, len(values) - 8), len(values), 2))
        kind = rng.integers(4)
        values.append(
            a + b if kind == 0
            else a.reshape(ROWS, 2, 4).transpose(0, 2, 1).reshape(ROWS, 8) if kind == 1
            else a.sum() * b if kind == 2
            else a.slice(1, 0, 4).concat([b.slice(1, 4, 8)], axis=1)
        )  # fmt: skip
    wanted = [values[i] for i in rng.integers(0, len(values), 3)]
    return fused(*wanted, **wishes)


@given(seed=st.integers(0, 10**6))
def test_random_graphs(seed: int) -> None:
    for segment in segments(random_plan(np.random.default_rng(seed), {})):
        check_segment(segment)


@pytest.mark.parametrize("wishes", [{}, {"regions": (), "row_group": None}], ids=["fused", "plain"])
def test_a_block(wishes: dict[str, object]) -> None:
    (segment,) = segments(fused(Scratch().block(), **wishes))
    check_segment(segment)
    assert segment.memory.nbytes > 0


def test_what_needs_no_place_has_none() -> None:
    graph, slab, rows = slab_graph()
    written = slab.apply(WriteSlice(0, 1), rows)
    n = graph.const("n", ConstRole.DATA, (), DType.I64)
    prefix = written.apply(ReadPrefix(Operand(1)), n)
    doubled = prefix + prefix  # its extent is known by the run alone
    view = (rows + rows).reshape(4)
    out = doubled.sum(-1).max(-2).reshape(1) + view.sum()
    plan = fused(out, view)
    (segment,) = segments(plan)
    placed = set(segment.memory.offsets)
    assert not placed & {written.id, prefix.id, doubled.id, view.id, out.id}
    assert placed == {node.id for node in segment.nodes if where(segment, node) == node.id}
    check_segment(segment)


def test_a_symbol_without_a_bound_has_no_size() -> None:
    graph = Graph()
    x = graph.const("x", ConstRole.DATA, (SymId("free"), 4))
    (segment,) = segments(fused((x + x).sum(0)))
    assert dict(segment.memory.offsets) == {}


def test_a_view_that_leaves_keeps_what_it_shows() -> None:
    graph = Graph()
    x = graph.const("x", ConstRole.DATA, (16,))
    base = x + 1.0
    view = base.reshape(4, 4)
    y: Tensor = x
    for _ in range(4):
        y = y * 2.0
    (segment,) = segments(fused(view, y))
    check_segment(segment)


# Executed in the arena


def run_in_arena(segment: Segment, data: dict[NodeId, np.ndarray]) -> dict[NodeId, np.ndarray]:
    """Run node by node with every placed value in one poisoned arena, as a device with such memory would."""
    env = SymEnv(dict(segment.bounds))
    arena = np.full(segment.memory.nbytes, 0xFF, np.uint8)
    values = dict(data)
    for node in segment.nodes:
        alone = Segment(segment.location, (node,), _slots(node, values), (), segment.bounds)
        registers: dict[int, np.ndarray] = {i: values[s.node] for i, s in enumerate(alone.inputs)}
        for step in lower(alone).instructions:
            registers[step.output] = step.kernel(step.op, env, *(registers[i] for i in step.inputs))
        result = registers[max(registers)]
        at = segment.memory.offsets.get(node.id)
        if at is not None:
            place = arena[at : at + result.nbytes].view(result.dtype).reshape(result.shape)
            place[...] = result.copy()
            result = place
        values[node.id] = result
    return {slot.node: values[slot.node] for slot in segment.outputs}


def _slots(node: Node, values: dict[NodeId, np.ndarray]) -> tuple[Slot, ...]:
    kinds = {np.dtype(d.value): d for d in DType}
    return tuple(
        Slot(i, f"%{i}", tuple(values[i].shape), kinds[values[i].dtype], plain(kinds[values[i].dtype]), True)
        for i in dict.fromkeys(node.inputs)
    )


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_results_survive_in_a_shared_arena(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan = random_plan(rng, {})
    (segment,) = segments(plan)
    data = {slot.node: rng.normal(0, 1, (4, 8)).astype(np.float32) for slot in segment.inputs}
    nothing_shared = run_apart(segment, data)
    shared = run_in_arena(segment, data)
    for node, expected in nothing_shared.items():
        np.testing.assert_array_equal(shared[node], expected)


def run_apart(segment: Segment, data: dict[NodeId, np.ndarray]) -> dict[NodeId, np.ndarray]:
    return run_in_arena(replace(segment, memory=NO_MEMORY), data)


def test_lives_that_end_too_soon_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        for seed in range(20):
            test_results_survive_in_a_shared_arena.hypothesis.inner_test(seed)  # type: ignore[attr-defined]

    goes_red(monkeypatch, memory, "_extend", lambda *_: None, check)


def test_a_view_read_after_it_left_doesn_t_end_what_it_shows() -> None:
    graph = Graph()
    x = graph.const("x", ConstRole.DATA, (16,))
    view = (x + 1.0).reshape(4, 4)
    early = view.reshape(16) + x  # reads it once more; then others come
    y = early * 2.0 * 3.0 * 4.0
    (segment,) = segments(fused(view, y))
    check_segment(segment)
