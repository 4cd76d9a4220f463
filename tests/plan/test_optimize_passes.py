"""The passes: placement, residency, layout, schedule, and what stays as it was."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from ostinato.device.segment import Segment
from ostinato.device.topology import TopologySnapshot
from ostinato.device.traits import SlabLayout, Traits
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import DataDependentExtent, NoDevice, NoKernel
from ostinato.ir import HOST, ConstRole, DType, Graph, Location, NodeId, Operand, SymId, Tensor, linear
from ostinato.ir import encoding as enc
from ostinato.ir.ops.movement import Copy
from ostinato.ir.ops.product import Linear
from ostinato.ir.ops.slab import ReadPrefix, WriteSlice
from ostinato.plan import placement
from ostinato.plan.optimize import optimize
from ostinato.plan.optimized import CopyStep, OptimizedGraph
from sabotage import goes_red, nothing

R0, R1 = Location("reference", 0), Location("reference", 1)
ROWS = SymId("rows")


def topology(**changes: object) -> TopologySnapshot:
    traits: Traits = replace(ReferenceDevice().traits, **changes)  # type: ignore[arg-type]
    return TopologySnapshot(7, MappingProxyType({R0: traits, R1: traits}))


def plan(
    graph: Graph, *roots: Tensor, hints: dict[NodeId, Location] | None = None, **changes: object
) -> OptimizedGraph:
    return optimize(
        graph, [root.id for root in roots], topology(**changes), default=R0, bounds={ROWS: 4}, hints=hints
    )


def segments(optimized: OptimizedGraph) -> list[Segment]:
    return [step for step in optimized.steps if isinstance(step, Segment)]


class Model:
    """x → linear(w0) → linear(w1), with a slab."""

    def __init__(self, encoding: enc.Encoding = enc.Q4_0) -> None:
        self.graph = Graph()
        self.x = self.graph.const("x", ConstRole.DATA, (ROWS, 32))
        self.mask = self.graph.const("mask", ConstRole.DATA, (ROWS, 8))
        self.w0 = self.graph.const("w0", ConstRole.WEIGHT, (32, 32), DType.F32, encoding)
        self.w1 = self.graph.const("w1", ConstRole.WEIGHT, (32, 32), DType.F32, encoding)
        self.h = linear(self.x, self.w0)
        self.y = linear(self.h, self.w1)


def test_the_source_graph_stays_as_it_was() -> None:
    m = Model()
    before = [str(node) for node in m.graph]
    plan(m.graph, m.y)
    assert [str(node) for node in m.graph] == before


def test_roots_come_home_in_order_and_consts_keep_their_ids() -> None:
    m = Model()
    optimized = plan(m.graph, m.y, m.h)
    copies = [optimized.nodes[root] for root in optimized.roots]
    assert [copy.inputs for copy in copies] == [(m.y.id,), (m.h.id,)]
    assert all(isinstance(copy.op, Copy) and copy.op.target == HOST for copy in copies)
    assert set(optimized.consts) == {m.x.id, m.w0.id, m.w1.id}
    assert optimized.dead_data == (m.mask.id,)
    assert optimized.generation == 7
    (segment,) = segments(optimized)
    assert [node.op.name for node in segment.nodes] == ["Linear", "Linear"]
    assert {slot.node for slot in segment.outputs} == {m.h.id, m.y.id}
    assert dict(segment.bounds) == {ROWS: 4}


def test_a_plan_is_immutable() -> None:
    m = Model()
    optimized = plan(m.graph, m.y)
    with pytest.raises(TypeError):
        optimized.nodes[m.x.id] = optimized.nodes[m.y.id]  # type: ignore[index]
    with pytest.raises(AttributeError):
        optimized.generation = 8  # type: ignore[misc]


def test_ops_run_where_their_weights_are_and_values_travel_once() -> None:
    m = Model()
    z = linear(m.h, m.graph.const("w2", ConstRole.WEIGHT, (32, 32)))
    optimized = plan(m.graph, m.y, z, hints={m.w1.id: R1, NodeId(z.node.inputs[1]): R1})
    assert optimized.placement[m.h.id] == R0
    assert optimized.placement[m.y.id] == optimized.placement[z.id] == R1
    crossings = [step for step in optimized.steps if isinstance(step, CopyStep) and step.target == R1]
    assert [(step.source, step.origin) for step in crossings] == [(m.h.id, R0)]
    assert [segment.location for segment in segments(optimized)] == [R0, R1]
    # operands of each segment are on its device
    for segment in segments(optimized):
        assert {optimized.placement[slot.node] for slot in segment.inputs} == {segment.location}


def test_data_is_uploaded_to_its_first_reader() -> None:
    m = Model()
    optimized = plan(m.graph, m.y, hints={m.w0.id: R1, m.w1.id: R1})
    assert optimized.placement[m.x.id] == R1
    assert len(segments(optimized)) == 1


def test_weights_get_their_recipe_and_packed_encoding() -> None:
    m = Model(enc.Q8_0)
    tied = m.graph.const("w0", ConstRole.WEIGHT, (32, 32), DType.F32, enc.Q8_0)
    optimized = plan(m.graph, m.y, linear(m.y, tied))
    consts = [optimized.nodes[w.id].op for w in (m.w0, m.w1, tied)]
    assert [const.recipe.names for const in consts] == [("w0",), ("w1",), ("w0",)]  # type: ignore[union-attr]
    assert consts[0].recipe == consts[2].recipe  # type: ignore[union-attr]
    assert {const.encoding for const in consts} == {enc.F32}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"weight_layouts": MappingProxyType({})}, ("Linear", "float32", "Q4_0")),
        ({"ops": ReferenceDevice().traits.ops - {Linear}}, ("Linear", "float32", "Q4_0")),
        ({"dtypes": frozenset({DType.I64})}, ("Linear", "float32")),
    ],
)
def test_a_missing_kernel_fails_while_planning(
    changes: dict[str, object], named: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        m = Model()
        with pytest.raises(NoKernel) as caught:
            plan(m.graph, m.y, **changes)
        for word in (*named, "reference:0"):
            assert word in str(caught.value)

    goes_red(monkeypatch, placement, "check_kernel", nothing, check)


def test_a_slab_type_that_attention_can_t_read_fails_while_planning() -> None:
    graph = Graph()
    slab = graph.const("k", ConstRole.SLAB, (1, 1, 8, 4), DType.F16)
    with pytest.raises(NoKernel, match="F16"):
        plan(
            graph,
            slab.apply(ReadPrefix(2)),
            kv_layouts=MappingProxyType({enc.F32: SlabLayout(enc.F32, enc.F32)}),
        )


def test_a_weight_that_no_op_reads_needs_a_layout_too() -> None:
    graph = Graph()
    weight = graph.const("w", ConstRole.WEIGHT, (2, 256), DType.F32, enc.Q8_K)
    with pytest.raises(NoKernel, match=r"weight 'w'.*Q8_K"):
        plan(graph, weight)


def test_a_hint_pins_data() -> None:
    m = Model()
    optimized = plan(m.graph, m.y, hints={m.x.id: R1})
    assert optimized.placement[m.x.id] == R1
    assert optimized.placement[m.h.id] == R0  # where its weight lies
    (crossing,) = [s for s in optimized.steps if isinstance(s, CopyStep) and s.target == R0]
    assert crossing.source == m.x.id
    y = m.x + 1.0
    assert plan(m.graph, y, hints={m.x.id: R1}).placement[y.id] == R1


def test_a_write_runs_at_its_slab_whatever_a_hint_says() -> None:
    graph, slab, rows = slab_graph()
    written = slab.apply(WriteSlice(0, 1), rows)
    optimized = plan(graph, written.apply(ReadPrefix(1)), hints={written.id: R1})
    assert optimized.placement[written.id] == R0


@pytest.mark.parametrize("hinted", [False, True])
def test_a_value_whose_extent_only_the_run_knows_stays_inside(hinted: bool) -> None:
    graph, slab, _ = slab_graph()
    n = graph.const("n", ConstRole.DATA, (), DType.I64)
    prefix = slab.apply(ReadPrefix(Operand(1)), n)
    total = prefix.sum(-1).max(-2)
    if hinted:
        with pytest.raises(DataDependentExtent, match="ReadPrefix"):
            plan(graph, total, hints={NodeId(total.node.inputs[0]): R1})
    else:
        with pytest.raises(DataDependentExtent, match="ReadPrefix"):
            plan(graph, prefix)
        plan(graph, total)


def test_no_device() -> None:
    m = Model()
    with pytest.raises(NoDevice, match=r"cpu:0.*reference:0, reference:1"):
        plan(m.graph, m.y, hints={m.w1.id: Location("cpu")})


def slab_graph() -> tuple[Graph, Tensor, Tensor]:
    graph = Graph()
    slab = graph.const("k", ConstRole.SLAB, (1, 1, 8, 4))
    rows = graph.const("rows", ConstRole.DATA, (1, 1, 4))
    return graph, slab, rows


def test_writes_run_even_if_nothing_reads_them() -> None:
    graph, slab, rows = slab_graph()
    written = slab.apply(WriteSlice(0, 1), rows)
    optimized = plan(graph, rows.sum())
    assert written.id in {node.id for segment in segments(optimized) for node in segment.nodes}
    assert optimized.aliases[written.id] == slab.id


def test_chained_writes_share_the_slab() -> None:
    graph, slab, rows = slab_graph()
    first = slab.apply(WriteSlice(0, 1), rows)
    second = first.apply(WriteSlice(1, 1), rows)
    optimized = plan(graph, second.apply(ReadPrefix(2)).sum())
    assert optimized.aliases == {first.id: slab.id, second.id: slab.id}


def test_a_shuffled_graph_schedules_every_node_after_its_inputs() -> None:
    rng = np.random.default_rng(0)
    graph = Graph()
    values = [graph.const("x", ConstRole.DATA, (4,))]
    for _ in range(200):
        a, b = rng.integers(0, len(values), 2)
        values.append(values[a] + values[b])
    hints = {value.id: R1 for value in values if rng.random() < 0.3}
    optimized = plan(graph, values[-1], values[-2], hints=hints)
    seen = set(optimized.consts)
    for step in optimized.steps:
        if isinstance(step, CopyStep):
            assert step.source in seen
            seen.add(step.node)
        else:
            for node in step.nodes:
                assert set(node.inputs) <= seen
                assert optimized.placement[node.id] == step.location
                seen.add(node.id)
