"""What a plan holds, read off it: ops by layer, copies, memory, inputs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from ostinato.decode.step import OUT_ROWS, ROWS, StepGraph
from ostinato.device.segment import Segment
from ostinato.device.topology import TopologySnapshot
from ostinato.ir.graph import Node
from ostinato.ir.op import Op
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.ops.movement import Copy
from ostinato.ir.ops.region import Region
from ostinato.ir.ops.slab import SlabWrite
from ostinato.ir.shape import NodeId, Operand, elements, show
from ostinato.ir.symbols import SymEnv
from ostinato.models.contract import Model
from ostinato.plan.optimized import CopyStep, OptimizedGraph

ONE_ROW = SymEnv({ROWS: 1, OUT_ROWS: 1})
"""A decode step."""

INPUTS: Mapping[str, tuple[str, str]] = {
    "token_ids": ("every token", "the token itself"),
    "rope_cos": ("every token", "rotary table of its position"),
    "rope_sin": ("every token", "rotary table of its position"),
    "mask": ("every token", "this family's own attention mask"),
    "start": ("every token", "its position"),
    "out_rows": ("once", "which row's logits count: a decode step has one row"),
    "count": ("once", "rows to write: always 1"),
}

DEAD = (
    "no op reads it (attention selects by start and length), so nothing makes, uploads or binds it; it "
    "stands in the graph so that every mode and family builds the same one"
)


@dataclass(frozen=True)
class OpRow:
    """One op. Operands are `#n` (an op of the same part), `in1` … (values from outside it) or Const names.
    `holds` are the ops that a region runs as one; its name is then that of its pattern."""

    op: str
    holds: tuple[str, ...]
    operands: tuple[str, ...]
    settings: str
    shape: str
    dtype: str


@dataclass(frozen=True)
class Part:
    """Ops before, in and after the layers. `layers` share one op list; where `as_layer` names an earlier
    layer with the same list, `ops` is empty. `locations` counts ops by device."""

    name: str
    layers: tuple[int, ...]
    as_layer: int | None
    count: int
    locations: Mapping[str, int]
    ops: tuple[OpRow, ...]


@dataclass(frozen=True)
class CopyRow:
    """`count` alike copies; `bytes` is of all of them, for a token."""

    value: str
    origin: str
    target: str
    reason: str
    count: int
    bytes: int


@dataclass(frozen=True)
class WeightRow:
    """Weights of one encoding on one device, as the file holds them and as packed there."""

    stored: str
    packed: str
    location: str
    tensors: int
    parameters: int
    stored_bytes: int
    packed_bytes: int


@dataclass(frozen=True)
class Memory:
    """Bytes. `output_bytes` are values that leave a segment; `arena_bytes` is room for those inside, by the
    plan's offsets, where `inner_bytes` is what all of them together have."""

    weights: tuple[WeightRow, ...]
    kv_dtype: str
    kv_bytes_per_position: int
    kv_bytes: int
    output_bytes: int
    arena_bytes: int
    inner_bytes: int


@dataclass(frozen=True)
class InputRow:
    """A data Const: `when` is "every token", "once" or "never"; `bytes` at one row, whenever that is."""

    name: str
    dtype: str
    shape: str
    bytes: int
    when: str
    why: str


BEFORE = -1


def schedule(model: Model, step: StepGraph, plan: OptimizedGraph) -> tuple[Part, ...]:
    """Ops in the order they run, by part; layers with the same ops folded onto the first of them."""
    order = [node for run in plan.steps if isinstance(run, Segment) for node in run.nodes]
    layer_of = _layers(model, step, plan, order)
    parts: list[Part] = []
    seen: dict[tuple[OpRow, ...], int] = {}
    for layer in sorted({layer_of[node.id] for node in order}):
        nodes = [node for node in order if layer_of[node.id] == layer]
        rows = tuple(_rows(plan, nodes, f"{layer}."))
        locations = dict(Counter(str(plan.placement[node.id]) for node in nodes))
        inside = 0 <= layer < len(step.slabs)
        name = "each layer" if inside else "before the layers" if layer < 0 else "after the layers"
        first = seen.setdefault(rows, layer) if inside else layer
        last = parts[-1] if parts else None
        if last and last.as_layer is not None and (last.as_layer, last.locations) == (first, locations):
            parts[-1] = Part(name, (*last.layers, layer), first, len(nodes), locations, ())
            continue
        folded = first != layer
        parts.append(
            Part(name, (layer,) if inside else (), first if folded else None, len(nodes), locations,
                 () if folded else rows)
        )  # fmt: skip
    return tuple(parts)


def _layers(model: Model, step: StepGraph, plan: OptimizedGraph, order: list[Node]) -> Mapping[NodeId, int]:
    """The layer of each op: that of the weight or slab it reads, else of its latest operand, else of its only
    reader. Shared weights (embedding, final norm, head) stand before or after all layers."""
    after = len(step.slabs)
    anchors = {node: i for i, pair in enumerate(step.slabs) for node in pair}
    specs = model.family.weight_specs(model.config)
    shared = set()
    for node_id in plan.consts:
        names = _packed(plan.nodes[node_id])
        layer = specs[names[0]].layer if names else None  # what is packed together is of one layer
        if layer is not None:
            anchors[node_id] = layer
        elif names:
            shared.add(node_id)
    layer_of: dict[NodeId, int] = {}
    readers: dict[NodeId, set[NodeId]] = defaultdict(set)
    floating = []
    for node in order:
        operands = [_source(plan, i) for i in node.inputs]
        for i in operands:
            readers[i].add(node.id)
        own = [anchors[i] for i in operands if i in anchors]
        known = max((layer_of[i] for i in operands if i in layer_of), default=BEFORE)
        if own:
            layer_of[node.id] = max(own)
        elif shared & set(operands):
            layer_of[node.id] = BEFORE if known == BEFORE else after
        else:
            layer_of[node.id] = known
            if known == BEFORE:
                floating.append(node.id)
    for loose in reversed(floating):
        layers = {layer_of[reader] for reader in readers[loose]}
        if len(layers) == 1:
            layer_of[loose] = layers.pop()
    return layer_of


def _packed(node: Node) -> tuple[str, ...]:
    """The weights in a weight Const; nothing for another."""
    return node.op.recipe.names if isinstance(node.op, Const) and node.op.recipe else ()


def _source(plan: OptimizedGraph, node: NodeId) -> NodeId:
    """What a value is a copy of."""
    while isinstance(plan.nodes[node].op, Copy):
        (node,) = plan.nodes[node].inputs
    return node


def _rows(plan: OptimizedGraph, nodes: list[Node], prefix: str) -> Iterator[OpRow]:
    number = {node.id: f"#{at}" for at, node in enumerate(nodes, 1)}
    outside: dict[NodeId, str] = {}

    def name(operand: NodeId) -> str:
        source = _source(plan, operand)
        op = plan.nodes[source].op
        if isinstance(op, Const):
            labels = _packed(plan.nodes[source]) or (op.label,)
            label = " + ".join(label.removeprefix(prefix) for label in labels)
            return label + (" slab" if op.role is ConstRole.SLAB else "")
        return number.get(source) or outside.setdefault(source, f"in{len(outside) + 1}")

    for node in nodes:
        operands = tuple(name(i) for i in node.inputs)
        held = tuple(op.name for op, _ in node.op.body) if isinstance(node.op, Region) else ()
        yield OpRow(node.op.name, held, operands, _settings(node.op), show(node.shape), str(node.dtype))


def _settings(op: Op) -> str:
    """An op's own numbers; its shape and where its lengths ride are told elsewhere. Of a region, those of the
    ops that compute."""
    if isinstance(op, Region):
        inner = (_settings(held) for held, _ in op.body if not held.may_alias)
        return ", ".join(filter(None, inner))
    values = vars(op)
    told = (f"{n} {v:.6g}" if isinstance(v, float) else f"{n} {v}" for n, v in values.items()
            if v is not None and v is not False and not isinstance(v, tuple | Operand))  # fmt: skip
    return ", ".join(told)


def copies(step: StepGraph, plan: OptimizedGraph) -> tuple[CopyRow, ...]:
    """Copies in order, alike ones across devices together."""
    roots = dict(zip(plan.roots, ("logits", "argmax", "hidden"), strict=True))
    rows: dict[CopyRow, int] = {}
    for run in plan.steps:
        if not isinstance(run, CopyStep):
            continue
        source = plan.nodes[run.source]
        label = source.op.label if isinstance(source.op, Const) else source.op.name
        if run.node in roots:
            label = roots[run.node]
            reason = "a result comes home to the host, only in steps that ask for it"
        else:
            reason = f"made or stored on {run.origin}, read on {run.target}"
        value = f"{label} {show(source.shape)} {source.dtype}"
        row = CopyRow(value, str(run.origin), str(run.target), reason, 1, _nbytes(source))
        rows[row] = rows.get(row, 0) + 1
    return tuple(
        CopyRow(r.value, r.origin, r.target, r.reason, times, times * r.bytes) for r, times in rows.items()
    )


def memory(model: Model, step: StepGraph, plan: OptimizedGraph, topology: TopologySnapshot) -> Memory:
    """Bytes by the layouts that devices declare; nothing is packed or allocated for it."""
    weights: dict[tuple[str, str, str], list[tuple[int, int, int, int]]] = {}
    for node_id in plan.consts:
        node = plan.nodes[node_id]
        if isinstance(node.op, Const) and node.op.role is ConstRole.WEIGHT:
            assert node.op.recipe is not None
            tensors = [model.weights[name] for name in node.op.recipe.names]
            place = plan.placement[node_id]
            layout = topology[place].layout(tensors[0].encoding, len(tensors[0].shape))
            assert layout is not None, "the plan had one"
            kept = [(tensor.stored or tensor.encoding, prod(tensor.shape)) for tensor in tensors]
            key = (str(kept[0][0]), str(node.op.encoding), str(place))
            stored = sum(count // e.block * e.block_bytes for e, count in kept)
            shape = [elements((extent,), ONE_ROW) for extent in node.shape]
            weights.setdefault(key, []).append((len(tensors), prod(shape), stored, layout.nbytes(shape)))
    rows = tuple(
        WeightRow(*key, *(sum(column) for column in zip(*of, strict=True)))
        for key, of in sorted(weights.items())
    )
    segments = [run for run in plan.steps if isinstance(run, Segment)]
    leaving = {slot.node for segment in segments for slot in segment.outputs}
    made = [n for s in segments for n in s.nodes if not isinstance(n.op, SlabWrite)]  # a write is its slab
    slabs = [slab for pair in step.slabs for slab in _slab_bytes(pair, plan, topology)]
    return Memory(
        weights=rows,
        kv_dtype=", ".join(dict.fromkeys(str(plan.sources[k]).lower() for k, _ in step.slabs)),
        kv_bytes_per_position=sum(position for position, _ in slabs),
        kv_bytes=sum(whole for _, whole in slabs),
        output_bytes=sum(_nbytes(node) for node in made if node.id in leaving),
        arena_bytes=sum(segment.memory.nbytes for segment in segments),
        inner_bytes=sum(_nbytes(n) for n in made if n.id not in leaving and not n.op.may_alias),
    )


def _slab_bytes(
    pair: tuple[NodeId, NodeId], plan: OptimizedGraph, topology: TopologySnapshot
) -> Iterator[tuple[int, int]]:
    """(bytes of a position, bytes of the slab) of a layer's K and V."""
    for slab, role in zip(pair, "kv", strict=True):
        node, layout = plan.nodes[slab], topology[plan.placement[slab]].kv_layouts[plan.sources[slab]]
        one, heads, capacity, dim = (elements((each,), ONE_ROW) for each in node.shape)
        fill = {"k": layout.k_fill, "v": layout.v_fill}[role][0]
        whole = layout.nbytes((one, heads, capacity, dim), role)
        yield layout.nbytes((one, heads, fill, dim), role) // fill, whole


def _nbytes(node: Node) -> int:
    return elements(node.shape, ONE_ROW) * node.dtype.nbytes


def inputs(step: StepGraph, plan: OptimizedGraph) -> Iterator[InputRow]:
    """Every data Const of the step, dead ones included."""
    for node in step.graph:
        if isinstance(node.op, Const) and node.op.role is ConstRole.DATA:
            when, why = ("never", DEAD) if node.id in plan.dead_data else INPUTS[node.op.label]
            yield InputRow(node.op.label, str(node.dtype), show(node.shape), _nbytes(node), when, why)
