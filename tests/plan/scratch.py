"""Small graphs of the ops that plans join and fuse, and plans of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from devices.fused import FusedDevice
from ostinato.device.topology import TopologySnapshot
from ostinato.ir import (
    ConstRole,
    DType,
    Graph,
    Location,
    NodeId,
    SymId,
    Tensor,
    linear,
    rms_norm,
    rope,
    swiglu,
)
from ostinato.ir import encoding as enc
from ostinato.ir.graph import Node
from ostinato.ir.ops.attention import Attention
from ostinato.ir.ops.const import Const
from ostinato.ir.ops.region import Region
from ostinato.ir.ops.slab import WriteSlice, WriteSliceDevice
from ostinato.ir.recipe import PackRecipe
from ostinato.ir.shape import Operand
from ostinato.plan.optimize import optimize
from ostinato.plan.optimized import OptimizedGraph

R0, R1 = Location("reference", 0), Location("reference", 1)
ROWS = SymId("rows")
DIM, FFN, HEADS, KV_HEADS, HEAD_DIM, CAPACITY = 32, 64, 4, 2, 8, 16


class Scratch:
    """A graph with what the steps of a model have: rows, a position, slabs, weights by name."""

    def __init__(self, *, symbolic: bool = False) -> None:
        self.graph = Graph()
        self.symbolic = symbolic
        self.x = self.graph.const("x", ConstRole.DATA, (ROWS, DIM))
        self.other = self.graph.const("other", ConstRole.DATA, (ROWS, DIM))
        self.cos, self.sin = (self.graph.const(n, ConstRole.DATA, (ROWS, 4)) for n in ("cos", "sin"))
        self.start, self.count = (
            self.graph.const(n, ConstRole.DATA, (), DType.I64) for n in ("start", "count")
        )
        self.k_slab, self.v_slab = (
            self.graph.const(n, ConstRole.SLAB, (1, KV_HEADS, CAPACITY, HEAD_DIM)) for n in "KV"
        )

    def weight(self, name: str, *shape: int, encoding: enc.Encoding = enc.F32) -> Tensor:
        return self.graph.const(name, ConstRole.WEIGHT, shape, DType.F32, encoding)

    def product(
        self, name: str, x: Tensor, rows: int, *, bias: bool = False, encoding: enc.Encoding = enc.F32
    ) -> Tensor:
        columns = x.shape[1]
        assert isinstance(columns, int)
        weight = self.weight(name, rows, columns, encoding=encoding)
        return linear(x, weight, self.weight(f"{name}.bias", rows) if bias else None)

    def norm(self, x: Tensor, name: str = "norm") -> Tensor:
        return rms_norm(x, self.weight(name, DIM), 1e-5)

    def heads(self, x: Tensor, count: int) -> Tensor:
        return x.reshape(ROWS, count, HEAD_DIM)

    def turn(self, x: Tensor) -> Tensor:
        return rope(x, self.cos, self.sin)

    def write(self, slab: Tensor, rows: Tensor, start: Tensor | None = None) -> Tensor:
        if self.symbolic:
            return slab.apply(WriteSlice(SymId("start"), SymId("count")), rows)
        return slab.apply(WriteSliceDevice(), rows, self.start if start is None else start, self.count)

    def read(self, q: Tensor, k_slab: Tensor, v_slab: Tensor) -> Tensor:
        """`[rows, heads · head_dim]`"""
        if self.symbolic:
            return q.apply(Attention(SymId("start"), SymId("length"), 0.5), k_slab, v_slab)
        at = Attention(Operand(3), Operand(4), 0.5)
        return q.apply(at, k_slab, v_slab, self.start, self.start + self.count)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k and v as they come from their products."""
        k_slab = self.write(self.k_slab, self.turn(self.heads(k, KV_HEADS)))
        v_slab = self.write(self.v_slab, self.heads(v, KV_HEADS))
        return self.read(self.turn(self.heads(q, HEADS)), k_slab, v_slab)

    def projections(self, x: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        q = self.product("q", x, HEADS * HEAD_DIM, **options)
        k, v = (self.product(name, x, KV_HEADS * HEAD_DIM, **options) for name in "kv")
        return q, k, v

    def block(self, **options: Any) -> Tensor:
        """A whole pre-norm block; `options` go to every product."""
        a = self.attend(*self.projections(self.norm(self.x), **options))
        x = self.x + self.product("o", a, DIM, **options)
        h = self.norm(x, "norm2")
        f = swiglu(self.product("gate", h, FFN, **options), self.product("up", h, FFN, **options))
        return x + self.product("down", f, DIM, **options)


def fused(
    *roots: Tensor, bound: int = 4, hints: Mapping[NodeId, Location] | None = None, **wishes: Any
) -> OptimizedGraph:
    """A plan for a device that asks for everything, or for what `wishes` says (`FusedDevice`)."""
    traits = FusedDevice(**wishes).traits
    topology = TopologySnapshot(7, MappingProxyType({R0: traits, R1: traits}))
    ids = [root.id for root in roots]
    return optimize(roots[0].graph, ids, topology, default=R0, bounds={ROWS: bound}, hints=hints)


def named(plan: OptimizedGraph) -> list[str]:
    """The plan's ops in order of their execution."""
    return [node.op.name for step in plan.steps for node in getattr(step, "nodes", ())]


def regions(plan: OptimizedGraph) -> list[Region]:
    """In order of their execution."""
    nodes = [node for step in plan.steps for node in getattr(step, "nodes", ())]
    return [node.op for node in nodes if isinstance(node.op, Region)]


def node_of(plan: OptimizedGraph, region: Region) -> Node:
    (found,) = (node for node in plan.nodes.values() if node.op is region)
    return found


def held(region: Region) -> list[str]:
    return [op.name for op, _ in region.body]


def recipes(plan: OptimizedGraph) -> set[PackRecipe]:
    ops = [plan.nodes[i].op for i in plan.consts]
    return {op.recipe for op in ops if isinstance(op, Const) and op.recipe is not None}


def labels(plan: OptimizedGraph, node: Node) -> list[str]:
    """What a node reads: labels of Consts, ids of the rest."""
    ops = [plan.nodes[i].op for i in node.inputs]
    return [op.label if isinstance(op, Const) else f"%{i}" for op, i in zip(ops, node.inputs, strict=True)]
