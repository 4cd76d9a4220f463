"""Who reads a slab as it was before a write runs before it, or reads a copy; a model's step needs neither."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_optimize_passes import R0, R1, plan, segments, slab_graph, topology

from ostinato.decode.step import OUT_ROWS, ROWS, build_step
from ostinato.device.traits import WritePath
from ostinato.errors import NoKernel, WriteConflict
from ostinato.ir import Tensor
from ostinato.ir import encoding as enc
from ostinato.ir.ops.movement import Clone
from ostinato.ir.ops.slab import ReadPrefix, WriteSlice
from ostinato.models.contract import Model
from ostinato.plan import hazards
from ostinato.plan.optimize import optimize
from ostinato.plan.optimized import OptimizedGraph
from sabotage import goes_red


def clones(optimized: OptimizedGraph) -> list[str]:
    """The op that each Clone copies."""
    nodes = optimized.nodes
    return [nodes[n.inputs[0]].op.name for n in nodes.values() if isinstance(n.op, Clone)]


@pytest.mark.parametrize("write_path", WritePath)
@pytest.mark.parametrize("dtype", [enc.F32, enc.F16])
def test_a_model_s_step_is_not_slowed(tiny: Model, write_path: WritePath, dtype: enc.Encoding) -> None:
    step = build_step(tiny, 16, dtype, write_path)
    bounds = {ROWS: 4, OUT_ROWS: 1}
    optimized = optimize(step.graph, step.roots, topology(), default=R0, bounds=bounds)
    assert clones(optimized) == []
    assert len(segments(optimized)) == 1


def test_a_reader_of_the_old_slab_runs_before_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        graph, slab, rows = slab_graph()
        written = slab.apply(WriteSlice(0, 1), rows)  # appended first
        view = slab.apply(ReadPrefix(1)).squeeze(0)
        old = view.sum()
        new = written.apply(ReadPrefix(1)).sum()
        optimized = plan(graph, old, new)
        (segment,) = segments(optimized)
        order = [node.id for node in segment.nodes]
        assert order.index(old.id) < order.index(written.id) < order.index(new.id)
        assert clones(optimized) == []

    goes_red(monkeypatch, hazards, "run_before", lambda *_: None, check)


def test_a_reader_that_needs_the_write_reads_a_copy_of_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        graph, slab, rows = slab_graph()
        view = slab.apply(ReadPrefix(2)).transpose(0, 1, 3, 2)
        written = slab.apply(WriteSlice(0, 1), rows)
        both = view.sum() + written.apply(ReadPrefix(2)).transpose(0, 1, 3, 2).sum()  # no copy
        changed = view - written.apply(ReadPrefix(2)).transpose(0, 1, 3, 2)  # a copy
        again = view * changed  # the same copy
        optimized = plan(graph, both, again)
        assert clones(optimized) == ["Transpose"]
        (segment,) = segments(optimized)
        order = [node.op.name for node in segment.nodes]
        assert order.index("Clone") < order.index("WriteSlice")

    goes_red(monkeypatch, hazards, "must_clone", lambda *_: False, check)


def test_a_value_that_leaves_is_copied_and_no_segment_is_cut() -> None:
    graph, slab, rows = slab_graph()
    view = slab.apply(ReadPrefix(2))
    written = slab.apply(WriteSlice(0, 1), rows)
    optimized = plan(graph, view, slab, written)
    assert sorted(clones(optimized)) == ["Const", "ReadPrefix"]
    assert len(segments(optimized)) == 1


def test_what_a_write_reads_of_its_own_slab_is_copied() -> None:
    graph, slab, _ = slab_graph()
    rows = slab.slice(2, 0, 1).squeeze(0)
    optimized = plan(graph, slab.apply(WriteSlice(1, 1), rows).apply(ReadPrefix(2)))
    assert clones(optimized) == ["Squeeze"]


def test_two_writes_into_one_state_are_a_conflict() -> None:
    graph, slab, rows = slab_graph()
    slab.apply(WriteSlice(0, 1), rows)
    slab.apply(WriteSlice(1, 1), rows)
    with pytest.raises(WriteConflict, match=r"WriteSlice %2 and WriteSlice %3.*'k'"):
        plan(graph, rows.sum())


def test_reading_each_other_s_old_state_across_two_slabs() -> None:
    """Neither reader needs the write that ends what it reads; together they can't both go first."""
    graph, slab, rows = slab_graph()
    other = graph.apply(slab.node.op)
    a, b = slab.apply(WriteSlice(0, 1), rows), other.apply(WriteSlice(0, 1), rows)
    first = slab.apply(ReadPrefix(1)) + b.apply(ReadPrefix(1))
    second = other.apply(ReadPrefix(1)) + a.apply(ReadPrefix(1))
    assert clones(plan(graph, first, second)) == ["ReadPrefix"]


def test_a_device_without_the_copy_is_told_while_planning() -> None:
    graph, slab, rows = slab_graph()
    slab.apply(WriteSlice(0, 1), rows)
    with pytest.raises(NoKernel, match="Clone"):
        plan(graph, slab.apply(ReadPrefix(1)), ops=topology()[R0].ops - {Clone})


def test_a_value_that_crosses_devices_is_copied_before_the_write() -> None:
    graph, slab, rows = slab_graph()
    view = slab.apply(ReadPrefix(2))
    written = slab.apply(WriteSlice(0, 1), rows)
    far = view + 1.0
    optimized = plan(graph, far, written.apply(ReadPrefix(2)), hints={far.id: R1})
    assert optimized.placement[far.id] == R1
    assert clones(optimized) == ["ReadPrefix"]


@given(st.lists(st.tuples(st.sampled_from("rwc"), st.integers(0, 9), st.integers(0, 9)), max_size=14))
@example([("w", 0, 0), ("r", 0, 0), ("w", 0, 1), ("r", 0, 1)])
def test_every_plan_has_an_order(program: list[tuple[str, int, int]]) -> None:
    """Whatever is read and written in whatever order, all of it is scheduled, operands first."""
    graph, slab, rows = slab_graph()
    states, values = [slab], [rows]
    for kind, i, j in program:
        if kind == "r":
            values.append(states[i % len(states)].slice(2, j % 8, j % 8 + 1).squeeze(0))
        elif kind == "w":
            states.append(states[-1].apply(WriteSlice(j % 8, 1), values[i % len(values)]))
        else:
            values.append(values[i % len(values)] + values[j % len(values)])
    roots: list[Tensor] = [*values, *states]
    optimized = plan(graph, *roots)
    seen = set(optimized.consts)
    for step in optimized.steps:
        for node in getattr(step, "nodes", ()) or ():
            assert set(node.inputs) <= seen
            seen.add(node.id)
