"""QuantizeRows stands before the products whose weights want it, and nowhere else."""

from __future__ import annotations

import pytest
from scratch import DIM, R0, R1, Scratch, fused, labels

from ostinato.devices.reference import device
from ostinato.errors import NoKernel
from ostinato.ir import encoding as enc
from ostinato.ir import linear
from ostinato.ir.ops.quantize import QuantizeRows
from ostinato.plan.optimized import OptimizedGraph

ONLY = {"regions": (), "row_group": None}


def rounded(plan: OptimizedGraph) -> dict[str, str]:
    """Weight → what its product's operand was rounded from; nothing where it wasn't."""
    found = {}
    for node in plan.nodes.values():
        if node.op.name == "Linear":
            x = plan.nodes[node.inputs[0]]
            found[labels(plan, node)[1]] = labels(plan, x)[0] if isinstance(x.op, QuantizeRows) else ""
    return found


def test_only_the_encodings_that_ask_for_it_are_rounded() -> None:
    s = Scratch()
    a = s.product("a", s.x, DIM, encoding=enc.Q8_0, bias=True)
    b = s.product("b", s.x, DIM, encoding=enc.F16)
    plan = fused(a, b, quantize={enc.Q8_0: 32}, **ONLY)
    assert rounded(plan) == {"a": "x", "b": ""}
    (linear_a,) = (node for node in plan.nodes.values() if node.id == a.id)
    assert labels(plan, linear_a)[1:] == ["a", "a.bias"]
    assert rounded(fused(a, b, **ONLY)) == {"a": "", "b": ""}


def test_one_rounding_serves_all_products_of_an_operand() -> None:
    s = Scratch()
    products = [s.product(name, s.x, DIM) for name in "abc"] + [s.product("d", s.other, DIM)]
    plan = fused(*products, quantize={enc.F32: 16}, **ONLY)
    assert rounded(plan) == {"a": "x", "b": "x", "c": "x", "d": "other"}
    ops = [node.op for node in plan.nodes.values() if isinstance(node.op, QuantizeRows)]
    assert ops == [QuantizeRows(16)] * 2


def test_each_device_and_block_has_its_own() -> None:
    s = Scratch()
    a, b = s.product("a", s.x, DIM), s.product("b", s.x, DIM)
    c = s.product("c", s.x, DIM, encoding=enc.Q8_0)
    hints = {b.node.inputs[1]: R1}
    plan = fused(a, b, c, hints=hints, quantize={enc.F32: 16, enc.Q8_0: 32}, **ONLY)
    found = {i: node.op.block for i, node in plan.nodes.items() if isinstance(node.op, QuantizeRows)}
    assert sorted((block, plan.placement[i]) for i, block in found.items()) == [(16, R0), (16, R1), (32, R0)]


def test_a_weight_that_is_computed_isn_t_packed_and_asks_for_nothing() -> None:
    s = Scratch()
    plan = fused(linear(s.x, s.weight("w", DIM, DIM) + 0.0), quantize={enc.F32: 16}, **ONLY)
    assert not any(isinstance(node.op, QuantizeRows) for node in plan.nodes.values())


def test_an_operand_that_the_blocks_don_t_divide_has_no_kernel() -> None:
    s = Scratch()
    y = s.product("w", s.x, DIM)
    with pytest.raises(NoKernel, match=r"Linear over 32 columns after QuantizeRows"):
        fused(y, quantize={enc.F32: 24}, **ONLY)


def test_a_device_that_can_t_round_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Scratch()
    y = s.product("w", s.x, DIM)
    monkeypatch.setattr(device, "_OPS", device._OPS - {QuantizeRows})
    with pytest.raises(NoKernel, match="QuantizeRows"):
        fused(y, quantize={enc.F32: 16}, **ONLY)
