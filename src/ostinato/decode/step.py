"""The graph of one step. It is the same graph at every position: start and count are data or symbols,
the row count is a symbol, and nothing about the token at hand stands in it as a literal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ostinato.decode.kv_cache import KvCache, slab_shapes
from ostinato.device.storage import Storage
from ostinato.device.traits import WritePath
from ostinato.errors.graph import ShapeMismatch
from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding, element
from ostinato.ir.graph import Graph
from ostinato.ir.location import Location
from ostinato.ir.ops.attention import Attention
from ostinato.ir.ops.const import ConstRole
from ostinato.ir.ops.slab import WriteSlice, WriteSliceDevice
from ostinato.ir.shape import Length, NodeId, Operand
from ostinato.ir.symbols import SymEnv, SymId
from ostinato.ir.tensor import Tensor
from ostinato.models.contract import LayerKv, Model, StepInputs

ROWS = SymId("rows")
"""Rows that the step computes."""
OUT_ROWS = SymId("out_rows")
"""Rows whose logits it computes."""
CACHED_LEN = SymId("cached_len")
"""Positions in the cache before the step (symbolic path)."""
COUNT = SymId("count")
"""Rows that the step writes (symbolic path)."""
ATTENDED_LEN = SymId("attended_len")
"""Positions in the cache after the step (symbolic path)."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a step's rows stand: each part is a symbol or a rank-0 int64 tensor."""

    start: Tensor | SymId
    count: Tensor | SymId
    length: Tensor | SymId


@dataclass
class SlabKvView:
    """A layer's K and V in slabs: `KvView` for one sequence."""

    layer: LayerKv
    k_slab: Tensor
    v_slab: Tensor
    at: Position

    def append(self, k: Tensor, v: Tensor) -> None:
        """k `[rows, kv_heads, k_dim]`, v `[rows, kv_heads, v_dim]` are written at the step's position."""
        self.k_slab = self._write(self.k_slab, k)
        self.v_slab = self._write(self.v_slab, v)

    def _write(self, slab: Tensor, rows: Tensor) -> Tensor:
        start, count = self.at.start, self.at.count
        if isinstance(start, Tensor) and isinstance(count, Tensor):
            return slab.apply(WriteSliceDevice(), rows, start, count)
        assert isinstance(start, SymId)
        assert isinstance(count, SymId)
        return slab.apply(WriteSlice(start, count), rows)

    def attend(self, q: Tensor, *, window: int | None, scale: float, mask: Tensor | None = None) -> Tensor:
        """q `[rows, heads, k_dim]` over everything appended so far → `[rows, heads · v_dim]`.

        Raises ShapeMismatch for a window other than the layer's, by which caches may have let positions go.
        """
        if window != self.layer.window:
            raise ShapeMismatch("Attention", f"the layer's window {self.layer.window}", str(window))
        operands = [self.k_slab, self.v_slab]
        start, length = (_ride(at, operands) for at in (self.at.start, self.at.length))
        if mask is not None:
            operands.append(mask)
        return q.apply(Attention(start, length, scale, window, mask is not None), *operands)


def _ride(length: Tensor | SymId, operands: list[Tensor]) -> Length:
    """A tensor joins the operands behind q; a symbol stands in the op."""
    if isinstance(length, SymId):
        return length
    operands.append(length)
    return Operand(len(operands))


@dataclass(frozen=True)
class StepGraph:
    """The nodes that callers bind or read. `start` and `count` are None on the symbolic path."""

    graph: Graph
    capacity: int
    write_path: WritePath
    token_ids: NodeId
    rope_cos: NodeId
    rope_sin: NodeId
    mask: NodeId
    out_rows: NodeId
    start: NodeId | None
    count: NodeId | None
    slabs: tuple[tuple[NodeId, NodeId], ...]
    weights: dict[str, NodeId]
    logits: NodeId
    argmax: NodeId
    hidden: NodeId

    @property
    def roots(self) -> tuple[NodeId, NodeId, NodeId]:
        """What a step can hand back: each gets its own Copy, and only those asked for are made."""
        return self.logits, self.argmax, self.hidden

    @cached_property
    def mask_is_live(self) -> bool:
        """Whether the family reads the mask; the shipped ones attend by position alone."""
        return any(self.mask in node.inputs for node in self.graph)


def build_step(
    model: Model,
    capacity: int,
    kv_dtype: Encoding,
    write_path: WritePath,
    encodings: Sequence[tuple[Encoding, Encoding]] | None = None,
) -> StepGraph:
    """Write `model`'s step over slabs of `capacity` positions; `encodings` says how each layer's K and V are
    stored, where not as `kv_dtype` itself."""
    graph = Graph()
    config, family = model.config, model.family

    def data(label: str, shape: Sequence[int | SymId], dtype: DType = DType.F32) -> Tensor:
        return graph.const(label, ConstRole.DATA, tuple(shape), dtype)

    ropes = config.ropes
    table = (len(ropes), ROWS, ropes[0].rot // 2)
    position = _position(graph, write_path)
    step = StepInputs(
        token_ids=data("token_ids", [ROWS], DType.I64),
        rope_cos=data("rope_cos", table),
        rope_sin=data("rope_sin", table),
        start=position.start,
        count=position.count,
        mask=data("mask", [ROWS, capacity]),
    )
    rows = data("out_rows", [OUT_ROWS], DType.I64)
    views = []
    slabs = []
    stored = encodings or ((kv_dtype, kv_dtype),) * len(config.kv)
    for i, (layer, (k_encoding, v_encoding)) in enumerate(zip(config.kv, stored, strict=True)):
        k_shape, v_shape = slab_shapes(layer, capacity)
        k = graph.const(f"{i}.k", ConstRole.SLAB, k_shape, element(kv_dtype), k_encoding)
        v = graph.const(f"{i}.v", ConstRole.SLAB, v_shape, element(kv_dtype), v_encoding)
        slabs.append((k.id, v.id))
        views.append(SlabKvView(layer, k, v, position))
    weights = {
        name: graph.const(name, ConstRole.WEIGHT, tensor.shape, DType.F32, tensor.encoding)
        for name, tensor in model.weights.items()
    }
    hidden = family.forward(config, weights, step, views)  # [rows, dim]
    logits = family.head(config, weights, hidden.gather(rows))  # [out_rows, vocab]
    return StepGraph(
        graph=graph,
        capacity=capacity,
        write_path=write_path,
        token_ids=step.token_ids.id,
        rope_cos=step.rope_cos.id,
        rope_sin=step.rope_sin.id,
        mask=step.mask.id,
        out_rows=rows.id,
        start=position.start.id if isinstance(position.start, Tensor) else None,
        count=position.count.id if isinstance(position.count, Tensor) else None,
        slabs=tuple(slabs),
        weights={name: tensor.id for name, tensor in weights.items()},
        logits=logits.id,
        argmax=logits.argmax().id,  # [out_rows]
        hidden=hidden.id,
    )


def _position(graph: Graph, write_path: WritePath) -> Position:
    if write_path is WritePath.SYMBOLIC:
        return Position(CACHED_LEN, COUNT, ATTENDED_LEN)
    start = graph.const("start", ConstRole.DATA, (), DType.I64)
    count = graph.const("count", ConstRole.DATA, (), DType.I64)
    return Position(start, count, start + count)


def step_env(cached_len: int, rows: int, out_rows: int, count: int | None = None) -> SymEnv:
    """The symbols of a step of `rows` rows, `count` of them (or all) written after `cached_len` others.

    Those that speak of the position are read on the symbolic path alone.
    """
    count = rows if count is None else count
    env = SymEnv({ROWS: rows, OUT_ROWS: out_rows})
    return env.bind(CACHED_LEN, cached_len).bind(COUNT, count).bind(ATTENDED_LEN, cached_len + count)


def slab_bindings(step: StepGraph, cache: KvCache) -> Mapping[NodeId, Storage]:
    """A cache's slabs under their nodes."""
    bound: dict[NodeId, Storage] = {}
    for layer, (k_node, v_node) in enumerate(step.slabs):
        bound[k_node], bound[v_node] = cache.slabs(layer)
    return bound


def placement_hints(step: StepGraph, model: Model, cache: KvCache) -> Mapping[NodeId, Location]:
    """A layer's weights live where its slabs do."""
    places = cache.locations()
    hints = {
        node: place
        for nodes, pair in zip(step.slabs, places, strict=True)
        for node, place in zip(nodes, pair, strict=True)
    }
    for name, spec in model.family.weight_specs(model.config).items():
        if spec.layer is not None:
            hints[step.weights[name]] = places[spec.layer][0]
    return hints
