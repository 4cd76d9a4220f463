"""Graphs: shape and dtype rules, symbols, and errors raised on the line that is wrong."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable

import pytest

from ostinato.errors import (
    ConflictingSymbol,
    DataDependentExtent,
    DTypeMismatch,
    GraphMixed,
    MalformedLocation,
    NoValueYet,
    ShapeMismatch,
    UnboundSymbol,
)
from ostinato.ir import (
    ConstRole,
    DataDim,
    DType,
    Graph,
    Location,
    NodeId,
    Operand,
    SymEnv,
    SymId,
    Tensor,
    embedding,
    layer_norm,
    linear,
    rms_norm,
    rope,
    swiglu,
)
from ostinato.ir import encoding as enc
from ostinato.ir.ops import COMPOSITES, PRIMITIVES
from ostinato.ir.ops.attention import Attention
from ostinato.ir.ops.const import Const, Iota, Scalar
from ostinato.ir.ops.nn import Embedding, GeluTanh, LayerNorm, RmsNorm, Rope, Silu, Softmax, SwiGlu
from ostinato.ir.ops.product import Linear, SelectedMatMul
from ostinato.ir.ops.region import Region
from ostinato.ir.ops.slab import ReadPrefix, WriteSlice, WriteSliceDevice
from ostinato.ir.shape import broadcast, resolve

ROWS = SymId("rows")


def data(graph: Graph, *shape: object, dtype: DType = DType.F32) -> Tensor:
    return graph.const("x", ConstRole.DATA, shape, dtype)  # type: ignore[arg-type]


def slab(graph: Graph, kv_heads: int = 2, capacity: int = 8, dim: int = 4) -> Tensor:
    return graph.const("slab", ConstRole.SLAB, (1, kv_heads, capacity, dim), DType.F16)


WRONG = {
    "add, shapes": lambda g: data(g, 3) + data(g, 4),
    "add, symbols": lambda g: data(g, ROWS) + data(g, SymId("other")),
    "where": lambda g: (data(g, 3) <= 0.0).where(data(g, 4), 0.0),
    "reshape": lambda g: data(g, ROWS, 6).reshape(ROWS, 2, 4),
    "reshape drops a symbol": lambda g: data(g, ROWS, 6).reshape(6),
    "transpose": lambda g: data(g, 2, 3).transpose(0, 0),
    "squeeze": lambda g: data(g, 2, 3).squeeze(0),
    "slice": lambda g: data(g, 2, 3).slice(1, 1, 4),
    "slice of a symbol": lambda g: data(g, ROWS)[0],
    "concat": lambda g: data(g, 2, 3).concat([data(g, 3, 3)], axis=1),
    "matmul": lambda g: data(g, 2, 3) @ data(g, 2, 3),
    "linear": lambda g: linear(data(g, ROWS, 3), data(g, 5, 4)),
    "linear bias": lambda g: linear(data(g, ROWS, 3), data(g, 5, 3), data(g, 3)),
    "norm": lambda g: rms_norm(data(g, ROWS, 3), data(g, 4), 1e-5),
    "layer norm bias": lambda g: layer_norm(data(g, ROWS, 3), data(g, 3), data(g, 4), 1e-5),
    "embedding": lambda g: embedding(data(g, ROWS, 1, dtype=DType.I64), data(g, 9, 4)),
    "swiglu": lambda g: swiglu(data(g, ROWS, 3), data(g, ROWS, 4)),
    "rope too wide": lambda g: rope(data(g, ROWS, 2, 4), data(g, ROWS, 3), data(g, ROWS, 3)),
    "rope rows": lambda g: rope(data(g, ROWS, 2, 4), data(g, 1, 2), data(g, 1, 2)),
    "write": lambda g: slab(g).apply(WriteSlice(0, 1), data(g, ROWS, 3, 4)),
    "read": lambda g: data(g, 4).apply(ReadPrefix(3)),
    "length not rank 0": lambda g: slab(g).apply(ReadPrefix(Operand(1)), data(g, 1, dtype=DType.I64)),
    "heads": lambda g: data(g, ROWS, 3, 4).apply(Attention(0, 8, 1.0), slab(g), slab(g)),
    "operand count": lambda g: data(g, 3).apply(RmsNorm(1e-5)),
    "no KV heads": lambda g: data(g, ROWS, 2, 4).apply(Attention(0, 8, 1.0), slab(g, 0), slab(g, 0)),
    "no heads": lambda g: data(g, ROWS, 0, 4).apply(Attention(0, 8, 1.0), slab(g), slab(g)),
    "v_dim is a symbol": lambda g: data(g, ROWS, 2, 4).apply(
        Attention(0, 8, 1.0), slab(g), data(g, 1, 2, 8, SymId("d"), dtype=DType.F16)
    ),
    "two slabs in one": lambda g: data(g, ROWS, 2, 4).apply(
        Attention(0, 8, 1.0), *[data(g, 2, 2, 8, 4, dtype=DType.F16) for _ in range(2)]
    ),
    "negative extents": lambda g: data(g, 2, 3).reshape(-2, -3),
    "a negative const": lambda g: g.apply(Const("x", ConstRole.DATA, (-1,), DType.F32, enc.F32)),
    "write into no slab": lambda g: slab(g).slice(2, 0, 4).apply(WriteSlice(0, 1), data(g, ROWS, 2, 4)),
    "selected lanes": lambda g: (data(g, 2, 3) <= 0.0).apply(SelectedMatMul(), data(g, 3, 2), data(g, 2, 4)),
    "mask": lambda g: data(g, ROWS, 2, 4).apply(
        Attention(0, 8, 1.0, masked=True), slab(g), slab(g), data(g, ROWS, 7)
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_shape_error_is_raised_where_the_op_is_written(wrong: object) -> None:
    graph = Graph()
    with pytest.raises(ShapeMismatch) as caught:
        wrong(graph)  # type: ignore[operator]
    # no node was appended for the op that failed
    assert caught.value.op not in {node.op.name for node in graph}
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert any(frame.filename == __file__ and frame.name == "<lambda>" for frame in frames)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.fields()) == (str(caught.value), caught.value.fields())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda g: data(g, 3) + data(g, 3, dtype=DType.I64),
        lambda g: data(g, 3) & data(g, 3),
        lambda g: data(g, 3, dtype=DType.I64).exp(),
        lambda g: data(g, 3, dtype=DType.I64) / data(g, 3, dtype=DType.I64),
        lambda g: data(g, 4, 2).gather(data(g, 3)),
        lambda g: slab(g).apply(WriteSlice(0, 1), data(g, ROWS, 2, 4, dtype=DType.F16)),
        lambda g: slab(g).apply(ReadPrefix(Operand(1)), data(g)),
        lambda g: data(g, 4, 2, dtype=DType.F16) @ data(g, 2, 2),
    ],
)
def test_a_dtype_error_is_raised_where_the_op_is_written(wrong: object) -> None:
    with pytest.raises(DTypeMismatch):
        wrong(Graph())  # type: ignore[operator]


def test_operands_of_two_graphs_don_t_mix() -> None:
    with pytest.raises(GraphMixed):
        data(Graph(), 3) + data(Graph(), 3)


def test_graph_ids_are_never_reused() -> None:
    ids = set()
    for _ in range(100):
        ids.add(Graph().id)  # collected at once
    assert len(ids) == 100


def composites(g: Graph) -> list[tuple[object, list[Tensor]]]:
    at = g.const("start", ConstRole.DATA, (), DType.I64)
    return [
        (Embedding(), [data(g, ROWS, dtype=DType.I64), data(g, 9, 4)]),
        (RmsNorm(1e-5), [data(g, ROWS, 4), data(g, 4)]),
        (LayerNorm(1e-5), [data(g, ROWS, 4), data(g, 4), data(g, 4)]),
        (GeluTanh(), [data(g, ROWS, 4)]),
        (Linear(), [data(g, ROWS, 3), data(g, 5, 3)]),
        (Linear(), [data(g, ROWS, 3), data(g, 5, 3), data(g, 5)]),
        (Rope(), [data(g, ROWS, 2, 6), data(g, ROWS, 2), data(g, ROWS, 2)]),
        (Rope(), [data(g, ROWS, 2, 4), data(g, ROWS, 2), data(g, ROWS, 2)]),
        (Silu(), [data(g, ROWS, 3)]),
        (SwiGlu(), [data(g, ROWS, 3), data(g, ROWS, 3)]),
        (Softmax(), [data(g, ROWS, 3)]),
        (Attention(1, 4, 1.0), [data(g, ROWS, 4, 4), slab(g), slab(g)]),
        (Attention(SymId("s"), SymId("n"), 1.0, 3), [data(g, ROWS, 4, 4), slab(g), slab(g, dim=6)]),
        (
            Attention(Operand(3), Operand(4), 1.0, 3, True),
            [data(g, ROWS, 4, 4), slab(g), slab(g), at, at + 1, data(g, ROWS, 8)],
        ),
        (
            Region("a norm and a product", 3, ((RmsNorm(1e-5), (0, 1)), (Linear(), (3, 2)), (Silu(), (4,)))),
            [data(g, ROWS, 3), data(g, 3), data(g, 5, 3)],
        ),
        (
            Region("a write", 5, ((WriteSliceDevice(), (0, 1, 2, 3)), (ReadPrefix(Operand(1)), (5, 4)))),
            [slab(g), data(g, ROWS, 2, 4), at, at + 1, at + 2],
        ),
    ]


def test_a_decomposition_has_the_shape_and_dtype_of_its_op() -> None:
    graph = Graph()
    cases = composites(graph)
    assert {type(op) for op, _ in cases} == set(COMPOSITES)
    for op, operands in cases:
        whole = operands[0].apply(op, *operands[1:])  # type: ignore[arg-type]
        parts = op.decompose(*operands)  # type: ignore[attr-defined]
        assert (parts.shape, parts.dtype) == (whole.shape, whole.dtype), op


def test_the_set_of_ops_is_closed_and_each_has_a_name_of_its_own() -> None:
    names = [op.__name__ for op in (*PRIMITIVES, *COMPOSITES)]
    assert len(names) == len(set(names))


def test_a_write_takes_its_position_as_operands_or_in_the_op() -> None:
    g = Graph()
    at, n = (g.const(name, ConstRole.DATA, (), DType.I64) for name in ("start", "count"))
    rows = data(g, ROWS, 2, 4)
    for written in (
        slab(g).apply(WriteSliceDevice(), rows, at, n),
        slab(g).apply(WriteSlice(SymId("s"), SymId("n")), rows),
    ):
        assert (written.shape, written.dtype) == ((1, 2, 8, 4), DType.F16)
    prefix = slab(g).apply(ReadPrefix(Operand(1)), n)
    assert prefix.shape == (1, 2, DataDim(n.id), 4)
    assert n.apply(Iota(Operand(0))).shape == (DataDim(n.id),)
    assert g.apply(Scalar(1.0, DType.F32)).shape == ()


def test_symbols_are_write_once() -> None:
    env = SymEnv({ROWS: 3})
    assert env.bind(ROWS, 3).resolve(ROWS) == 3
    with pytest.raises(ConflictingSymbol, match=r"rows.*3.*4"):
        env.bind(ROWS, 4)
    assert env[ROWS] == 3
    with pytest.raises(UnboundSymbol, match="n"):
        env.resolve(SymId("n"))
    assert env.resolve(7) == 7


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ((3, 1), (4,), (3, 4)),
        ((ROWS, 1), (1, 4), (ROWS, 4)),
        ((), (2,), (2,)),
        ((3,), (4,), None),
        ((ROWS,), (3,), None),
    ],
)
def test_broadcasting(left: tuple[object, ...], right: tuple[object, ...], result: object) -> None:
    assert broadcast(left, right) == result  # type: ignore[arg-type]


def test_locations_are_written_kind_and_ordinal() -> None:
    assert Location.parse("cpu") == Location("cpu", 0)
    assert str(Location.parse("reference:12")) == "reference:12"
    for text in ("", ":1", "cpu:", "cpu:x", "c p u", "cpu:-1", "cpu:٣"):
        with pytest.raises(MalformedLocation) as caught:
            Location.parse(text)
        assert isinstance(caught.value, ValueError)
        assert "KIND:ORDINAL" in caught.value.remedy


def test_numbers_may_stand_on_either_side() -> None:
    g = Graph()
    x = data(g, 2)
    for made, op, scalar_first in (
        (x + 2.0, "Add", False),
        (2.0 + x, "Add", True),
        (1.0 - x, "Sub", True),
        (2.0 * x, "Mul", True),
        (2.0 / x, "Div", True),
    ):
        assert made.node.op.name == op
        assert isinstance(g[made.node.inputs[0]].op, Scalar) is scalar_first


@pytest.mark.parametrize("use", [bool, list, lambda x: [*x], lambda x: 1 if x < 0.0 else 2, lambda x: not x])
def test_a_tensor_holds_no_values_for_python(use: Callable[[Tensor], object]) -> None:
    with pytest.raises(NoValueYet, match="holds no data") as caught:
        use(data(Graph(), 2, 3))
    assert isinstance(caught.value, TypeError)


def test_a_data_extent_has_no_number_outside_a_run() -> None:
    with pytest.raises(DataDependentExtent, match=r"%3"):
        resolve((2, DataDim(NodeId(3))), SymEnv())


def test_only_ops_that_say_so_share_memory() -> None:
    """A composite's result comes through at least one op that computes."""
    graph = Graph()
    for op, operands in composites(graph):
        node = op.decompose(*operands).node  # type: ignore[attr-defined]
        while node.op.may_alias:
            node = graph[node.inputs[0]]
        assert node.inputs, op
        assert not op.may_alias  # type: ignore[attr-defined]
