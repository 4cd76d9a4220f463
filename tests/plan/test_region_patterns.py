"""What becomes a region, what it holds, and what stays outside because somebody else must see it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from scratch import (
    DIM,
    FFN,
    HEADS,
    R1,
    Scratch,
    fused,
    held,
    labels,
    named,
    node_of,
    regions,
)  # fmt: skip

from ostinato.decode.step import build_step
from ostinato.device.traits import WritePath
from ostinato.errors import DTypeMismatch, ShapeMismatch
from ostinato.ir import Tensor, gelu_tanh, layer_norm, linear, rms_norm, swiglu
from ostinato.ir import encoding as enc
from ostinato.ir.ops.elementwise import Add
from ostinato.ir.ops.nn import GeluTanh, LayerNorm, RmsNorm, Silu
from ostinato.ir.ops.product import Linear
from ostinato.ir.ops.quantize import QuantizeRows
from ostinato.ir.ops.region import Region
from ostinato.ir.ops.slab import WriteSliceDevice
from ostinato.models.contract import Model
from ostinato.models.loader import load_model
from ostinato.plan.optimized import OptimizedGraph
from ostinato.plan.regions.attend import attend_parts
from ostinato.plan.regions.product import product_parts
from ostinato.plan.regions.scene import Scene
from sabotage import goes_red

PRODUCT, GATED, ATTEND = "product", "gated_product", "attend"


def patterns(plan: OptimizedGraph) -> list[str]:
    return [region.pattern for region in regions(plan)]


# Whole models


def plan_of(model: Model, path: WritePath, rows: int, **wishes: object) -> OptimizedGraph:
    step = build_step(model, 16, enc.F32, path)
    return fused(*(step.graph.tensor(root) for root in step.roots), bound=rows, **wishes)


LLAMA = [PRODUCT, ATTEND, PRODUCT, GATED, PRODUCT]
PHI = {PRODUCT: 4, ATTEND: 1}


@pytest.mark.parametrize("path", WritePath)
@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("name", ["grouped", "tied", "window", "bias"])
def test_a_llama_layer_is_five_regions(fixtures: Path, name: str, path: WritePath, rows: int) -> None:
    model = load_model(fixtures / f"tiny-llama-{name}.gguf")
    plan = plan_of(model, path, rows, quantize={enc.F32: 32})
    assert patterns(plan) == [*LLAMA * 2, PRODUCT]
    qkv, attend, o, gate_up, down = regions(plan)[:5]
    biased = name == "bias"
    rounding = QuantizeRows(32)
    norm = RmsNorm(model.config.norm_eps)
    parts = product_parts(qkv)
    assert (parts.norm, parts.rounding, parts.residual, parts.gated) == (norm, rounding, None, None)
    assert (parts.bias is not None) == biased
    parts = product_parts(gate_up)
    assert (parts.norm, parts.rounding, parts.gated, parts.activation) == (norm, rounding, 16, None)
    for region in (o, down):
        parts = product_parts(region)
        assert (parts.norm, parts.rounding, parts.gated) == (None, rounding, None)
        assert parts.residual == region.arity - 1
    assert attend_parts(attend).attention.window == model.config.window
    # nothing is left over: views, the embedding, the final norm, rows picked and the argmax
    left = {node.op.name for node in plan.nodes.values() if not isinstance(node.op, Region)}
    assert left <= {
        "Const",
        "Copy",
        "Slice",
        "Reshape",
        "Squeeze",
        "Embedding",
        "RmsNorm",
        "Gather",
        "ArgMax",
        "Add",
    }
    assert sum(node.op.name == "RmsNorm" for node in plan.nodes.values()) == 1


@pytest.mark.parametrize("path", WritePath)
def test_a_phi_layer_is_four_products_and_an_attention(fixtures: Path, path: WritePath) -> None:
    plan = plan_of(load_model(fixtures / "tiny-phi.gguf"), path, 1)
    layer = regions(plan)[:5]
    assert sorted(region.pattern for region in layer) == [ATTEND, *[PRODUCT] * 4]
    parts = [product_parts(region) for region in layer if region.pattern == PRODUCT]
    assert sum(isinstance(part.norm, LayerNorm) for part in parts) == 2  # its result, computed for each
    assert [part.activation for part in parts if part.activation] == [GeluTanh()]
    assert sum(part.residual is not None for part in parts) == 2
    assert all(part.bias is not None for part in parts)


def test_a_device_gets_the_patterns_that_it_asks_for() -> None:
    s = Scratch()
    y = s.block()
    for wanted in ((), (ATTEND,), (PRODUCT,), (GATED,), (GATED, ATTEND)):
        assert set(patterns(fused(y, regions=wanted))) == set(wanted)
    # the joined product of a device that has no kernel for the gated form
    assert held(regions(fused(y, regions=(PRODUCT,)))[2]) == ["RmsNorm", "Linear"]


# Products

Shape = tuple[Callable[[Scratch], Tensor], list[str], list[str]]
SHAPES: dict[str, Shape] = {
    "bare": (lambda s: s.product("w", s.x, DIM), ["Linear"], ["x", "w"]),
    "bias": (lambda s: s.product("w", s.x, DIM, bias=True), ["Linear"], ["x", "w", "w.bias"]),
    "norm": (lambda s: s.product("w", s.norm(s.x), DIM), ["RmsNorm", "Linear"], ["x", "norm", "w"]),
    "layer norm": (
        lambda s: s.product(
            "w", layer_norm(s.x, s.weight("n", DIM), s.weight("b", DIM), 1e-5), DIM, bias=True
        ),
        ["LayerNorm", "Linear"],
        ["x", "n", "b", "w", "w.bias"],
    ),
    "gelu": (lambda s: gelu_tanh(s.product("w", s.x, DIM)), ["Linear", "GeluTanh"], ["x", "w"]),
    "silu": (lambda s: s.product("w", s.x, DIM).apply(Silu()), ["Linear", "Silu"], ["x", "w"]),
    "residual": (lambda s: s.product("w", s.x, DIM) + s.other, ["Linear", "Add"], ["x", "w", "other"]),
    "residual first": (lambda s: s.other + s.product("w", s.x, DIM), ["Linear", "Add"], ["x", "w", "other"]),
    "its own operand": (
        lambda s: s.x + s.product("w", s.norm(s.x), DIM),
        ["RmsNorm", "Linear", "Add"],
        ["x", "norm", "w", "x"],
    ),
    "everything": (
        lambda s: s.other + gelu_tanh(s.product("w", s.norm(s.x), DIM, bias=True)),
        ["RmsNorm", "Linear", "GeluTanh", "Add"],
        ["x", "norm", "w", "w.bias", "other"],
    ),
}


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_a_product_takes_what_stands_around_it(name: str, rounded: bool) -> None:
    build, ops, operands = SHAPES[name]
    s = Scratch()
    y = build(s)
    plan = fused(y, quantize={enc.F32: 16} if rounded else {})
    (region,) = regions(plan)
    if rounded:
        ops = [*ops]
        ops.insert(ops.index("Linear"), "QuantizeRows")
    assert (region.pattern, held(region)) == (PRODUCT, ops)
    node = node_of(plan, region)
    assert (node.id, node.shape, labels(plan, node)) == (y.id, y.shape, operands)
    parts = product_parts(region)
    at = {label: i for i, label in reversed(list(enumerate(operands)))}
    assert (parts.x, parts.weight, parts.bias) == (0, at["w"], at.get("w.bias"))
    assert [operands[i] for i in parts.norm_operands] == [n for n in operands if n in ("norm", "n", "b")]
    assert parts.rounding == (QuantizeRows(16) if rounded else None)
    assert type(parts.activation) is (
        GeluTanh if "GeluTanh" in ops else Silu if "Silu" in ops else type(None)
    )
    assert parts.residual == (len(operands) - 1 if "Add" in ops else None)


def test_a_sum_of_two_products_goes_to_the_later() -> None:
    s = Scratch()
    first, second = s.product("a", s.x, DIM), s.product("b", s.other, DIM)
    plan = fused(first + second)
    one, two = regions(plan)
    assert (held(one), held(two)) == (["Linear"], ["Linear", "Add"])
    assert labels(plan, node_of(plan, two)) == ["other", "b", f"%{first.id}"]
    assert two.body[-1] == (Add(), (2, 3))  # in the order of the sum


def test_where_the_later_product_is_seen_elsewhere_the_earlier_takes_the_sum() -> None:
    s = Scratch()
    first, second = s.product("a", s.x, DIM), s.product("b", s.other, DIM)
    plan = fused(first + second, second)
    assert sorted(map(tuple, map(held, regions(plan)))) == [("Linear",), ("Linear", "Add")]
    (sum_,) = (region for region in regions(plan) if "Add" in held(region))
    assert labels(plan, node_of(plan, sum_)) == ["x", "a", f"%{second.id}"]


KEPT_OUT: dict[str, Callable[[Scratch], list[Tensor]]] = {
    "a sum with itself": lambda s: [(y := s.product("w", s.x, DIM)) + y],
    "a sum that broadcasts": lambda s: [s.product("w", s.x, DIM) + s.weight("row", DIM)],
    "two readers": lambda s: [(y := s.product("w", s.x, DIM)) + s.other, y * 2.0],
    "an activation with two readers": lambda s: [
        (y := gelu_tanh(s.product("w", s.x, DIM))) + s.other,
        y * 2.0,
    ],
    "a result that comes home": lambda s: [(y := s.product("w", s.x, DIM)) + s.other, y],
    "a result and its activation": lambda s: [gelu_tanh(y := s.product("w", s.x, DIM)), y],
}


@pytest.mark.parametrize("name", KEPT_OUT)
def test_what_others_see_stays_outside(name: str) -> None:
    s = Scratch()
    roots = KEPT_OUT[name](s)
    plan = fused(*roots)
    (region,) = regions(plan)
    expected = ["Linear", "GeluTanh"] if name == "an activation with two readers" else ["Linear"]
    assert held(region) == expected
    assert {root.id for root in roots} <= set(plan.nodes)


def test_without_the_look_for_other_readers_a_value_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that finds its operand gone."""
    for name in ("two readers", "a result that comes home"):
        goes_red(
            monkeypatch, Scene, "only_reader", lambda self, node: self.nodes[self.readers[node][0]],
            lambda name=name: test_what_others_see_stays_outside(name), expect=(AssertionError, KeyError),
        )  # fmt: skip


def test_a_norm_that_others_read_stays_and_is_computed_again_inside() -> None:
    s = Scratch()
    h = s.norm(s.x)
    plan = fused(s.product("a", h, DIM), s.product("b", h, FFN), h)
    assert [held(region) for region in regions(plan)] == [["RmsNorm", "Linear"]] * 2
    assert plan.nodes[h.id].op == RmsNorm(1e-5)
    plan = fused(s.product("a", h, DIM), s.product("b", h, FFN))
    assert h.id not in plan.nodes


def test_a_weight_that_is_computed_is_no_weight() -> None:
    s = Scratch()
    doubled = s.weight("w", DIM, DIM) * 2.0
    scale = s.weight("n", DIM) * 2.0
    plan = fused(linear(s.x, doubled), s.product("v", rms_norm(s.x, scale, 1e-5), DIM))
    (region,) = regions(plan)
    assert held(region) == ["Linear"]
    assert named(plan).count("Linear") == 1
    assert named(plan).count("RmsNorm") == 1


def test_a_region_lies_on_one_device() -> None:
    s = Scratch()
    h = s.norm(s.x)
    y = s.product("w", h, DIM)
    plan = fused(gelu_tanh(y) + s.other, hints={y.node.inputs[1]: R1})
    (region,) = regions(plan)
    assert held(region) == ["Linear", "GeluTanh", "Add"]  # they run where the weight is; the norm doesn't
    assert plan.placement[h.id] != plan.placement[node_of(plan, region).id] == R1


def test_an_activation_on_another_device_stays_there() -> None:
    s = Scratch()
    y = s.product("w", s.x, DIM)
    z = gelu_tanh(y)
    plan = fused(z, hints={z.id: R1})
    assert [held(region) for region in regions(plan)] == [["Linear"]]
    assert plan.placement[z.id] == R1


# Gated products


def gated(s: Scratch, **options: object) -> tuple[Tensor, Tensor, Tensor]:
    h = s.norm(s.x)
    gate, up = (s.product(name, h, FFN, **options) for name in ("gate", "up"))
    return gate, up, swiglu(gate, up)


@pytest.mark.parametrize("bias", [False, True])
def test_a_gated_product_holds_the_views_too(bias: bool) -> None:
    s = Scratch()
    _, _, y = gated(s, bias=bias)
    plan = fused(y, quantize={enc.F32: 32})
    (region,) = regions(plan)
    ops = ["Reshape", "Slice", "Reshape", "Slice", "Reshape", "SwiGlu"]
    assert (region.pattern, held(region)) == (GATED, ["RmsNorm", "QuantizeRows", "Linear", *ops])
    operands = ["x", "norm", "gate + up"] + ["gate.bias + up.bias"] * bias
    assert labels(plan, node_of(plan, region)) == operands
    parts = product_parts(region)
    assert (parts.norm_operands, parts.weight, parts.bias, parts.gated) == ((1,), 2, 3 if bias else None, 16)
    assert set(named(plan)) == {"gated_product region"}


def test_a_half_that_others_see_keeps_the_gate_apart() -> None:
    for seen in (0, 1):
        s = Scratch()
        *halves, y = gated(s)
        plan = fused(y, halves[seen])
        (region,) = regions(plan)
        assert (region.pattern, held(region)) == (PRODUCT, ["RmsNorm", "Linear"])
        assert "SwiGlu" in named(plan)


def test_halves_of_two_gates_stay_outside_both() -> None:
    s = Scratch()
    gate, up, y = gated(s)
    plan = fused(y, swiglu(up, gate))
    assert patterns(plan) == [PRODUCT]
    assert named(plan).count("SwiGlu") == 2


# The op itself


def test_a_region_refuses_operands_that_its_body_would() -> None:
    s = Scratch()
    region = Region("any", 2, ((Linear(), (0, 1)),))
    wide = s.weight("w", 4, DIM + 1)
    with pytest.raises(ShapeMismatch, match="2 operands"):
        s.x.apply(region)
    with pytest.raises(ShapeMismatch, match="Linear"):
        s.x.apply(region, wide)
    with pytest.raises(DTypeMismatch, match="Linear"):
        s.start.apply(region, wide)
    write = Region("any", 4, ((WriteSliceDevice(), (0, 1, 2, 3)),))
    rows = s.heads(s.other, HEADS).slice(1, 0, 2)
    assert s.k_slab.apply(write, rows, s.start, s.count).shape == s.k_slab.shape
    with pytest.raises(ShapeMismatch, match="a slab or what a write returned"):
        rows.apply(write, rows, s.start, s.count)
