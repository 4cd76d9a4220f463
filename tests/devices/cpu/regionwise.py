"""A model's step on the CPU device and the very same plan on the reference device: as a whole, and node by
node, each from the reference's own inputs."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from decode.sessionkit import World, tokens_of
from devices.cpu.weighing import SCALES, decoded, encoded
from devices.frail import KernelByKernel
from ostinato.decode.data import data_by_node, shape_data, token_data
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.step import OUT_ROWS, ROWS, StepGraph, build_step, slab_bindings, step_env
from ostinato.device.topology import TopologySnapshot
from ostinato.device.traits import WritePath
from ostinato.devices.cpu.device import CpuDevice
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.ir import ConstRole, Location, SymEnv
from ostinato.ir import encoding as enc
from ostinato.ir.encoding import Encoding, plain
from ostinato.ir.graph import Node
from ostinato.ir.location import HOST
from ostinato.ir.ops.const import Const
from ostinato.ir.ops.movement import Copy
from ostinato.ir.ops.nn import LayerNorm, RmsNorm
from ostinato.ir.ops.quantize import QuantizeRows, RoundBF16
from ostinato.ir.ops.region import Region
from ostinato.ir.ops.slab import SlabWrite
from ostinato.ir.shape import NodeId, resolve
from ostinato.models.contract import Model
from ostinato.models.recode import Recode, recoded
from ostinato.plan.draft import Draft
from ostinato.plan.memory import plan_memory
from ostinato.plan.optimized import OptimizedGraph
from ostinato.plan.regions.product import ProductParts, product_parts
from ostinato.plan.retarget import retarget
from ostinato.plan.schedule import aliases, schedule
from ostinato.runtime.context import Bindings, InferenceContext
from ostinato.runtime.registry import Registry
from ostinato.runtime.weights import WeightSet

CPU, REFERENCE = Location("cpu"), Location("reference", 1)
"""A reference of its own: its store packs the joined weights that the CPU device asks for."""
CAPACITY, CACHED = 140, 131
"""A step over a cache that ends in its second span and is no whole number of blocks."""

Values = Mapping[NodeId, np.ndarray]


def with_weights(model: Model, encoding: Encoding, which: Recode = Recode.FLOATS) -> Model:
    """The model with its matrices in `encoding`, where their rows are whole blocks of it."""
    tensors = {}
    for name, tensor in model.weights.items():
        target = recoded(tensor.encoding, tensor.shape, encoding, which)
        tensors[name] = tensor
        if target != tensor.encoding:
            tensors[name] = replace(tensor, encoding=target, stored=tensor.encoding)
    return Model(model.family, model.config, WeightSet(tensors), model.path)


def with_any_weights(model: Model, encoding: Encoding) -> Model:
    """The model with matrices of random bytes in `encoding`, their scales such that values are about 1/20."""
    tensors = dict(model.weights)
    for name, tensor in tensors.items():
        if len(tensor.shape) == 2:
            raw = encoded(encoding, *tensor.shape, seed=zlib.crc32(name.encode()))
            tensors[name] = replace(tensor, encoding=encoding, raw=scaled(encoding, raw, 1 / 20), stored=None)
    return Model(model.family, model.config, WeightSet(tensors), model.path)


def scaled(encoding: Encoding, raw: np.ndarray, size: float) -> np.ndarray:
    """Encoded rows with their scales multiplied, so that values have this root of the mean of squares."""
    factor = size / np.sqrt(np.square(decoded(encoding, raw)).mean())
    blocks = raw.reshape(-1, encoding.block_bytes).copy()
    if encoding == enc.MXFP4:
        blocks[:, 0] += np.uint8(round(np.log2(factor)) % 256)
    for at in SCALES.get(encoding, ()):
        scale = blocks[:, at : at + 2].copy().view("<f2") * np.float32(factor)
        blocks[:, at : at + 2] = scale.astype("<f2").view(np.uint8)
    return blocks.reshape(-1)


@dataclass(frozen=True)
class Opened:
    """A plan with every value that it computes among its roots: `copies` brings each home. Severed, every
    node reads data in their place, by the Consts in `given`."""

    plan: OptimizedGraph
    copies: Mapping[NodeId, NodeId]
    given: Mapping[NodeId, NodeId]


def opened(plan: OptimizedGraph, topology: TopologySnapshot, *, severed: bool = False) -> Opened:
    """What the regions are stays as it is; views stay views of what they show."""
    draft = Draft(
        graph_id=plan.graph_id,
        nodes=dict(plan.nodes),
        roots=plan.roots,
        topology=topology,
        bounds=plan.bounds,
        dead_data=plan.dead_data,
        placement=dict(plan.placement),
        order=list(plan.order),
        sources=dict(plan.sources),
        _next=max(plan.nodes) + 1,
    )
    copies, given = {}, {}
    for node in plan.nodes.values():
        if isinstance(node.op, Const | Copy | SlabWrite) or node.op.may_alias:
            continue
        copies[node.id] = draft.add(Copy(HOST), [node.id])
        draft.placement[copies[node.id]] = HOST
        if severed:
            label = f"%{node.id} as the reference has it"
            const = Const(label, ConstRole.DATA, node.shape, node.dtype, plain(node.dtype))
            given[node.id] = draft.add(const, [])
            draft.placement[given[node.id]] = draft.placement[node.id]
    for node in plan.nodes.values():
        if not isinstance(node.op, Copy):
            draft.rewire(node.id, [given.get(i, i) for i in node.inputs])
    draft.roots = (*plan.roots, *copies.values())
    steps = plan_memory(draft, schedule(draft))
    return Opened(OptimizedGraph.of(draft, steps, aliases(draft)), copies, given)


class Pair:
    """The two devices, a model, a step of at most `bound` rows planned for the CPU device, and contents for
    the slabs: random in the first positions, NaN in all others."""

    def __init__(
        self, model: Model, isa: Isa, kv: enc.Encoding, path: WritePath, bound: int, threads: int = 1
    ) -> None:
        devices = Registry()
        device = CpuDevice(isa=isa)
        device.engine = KernelByKernel(isa, None, threads)
        devices.register(device)
        devices.register(ReferenceDevice(REFERENCE.ordinal))
        self.model, self.kv, self.bound, self.devices = model, kv, bound, devices
        self.worlds = {place: World(devices, (place,)) for place in (CPU, REFERENCE)}
        encodings = self.cache(CPU).encodings()
        self.step: StepGraph = build_step(model, CAPACITY, kv, path, encodings)
        bounds = {ROWS: bound, OUT_ROWS: bound}
        self.plan = InferenceContext(CPU, devices).plan(self.step.graph, self.step.roots, bounds=bounds)

    def cache(self, place: Location) -> KvCache:
        world = self.worlds[place]
        cache = world.cache(self.model, CAPACITY, self.kv)
        world.fill(cache, CACHED)
        world.poison(cache)
        return cache

    @cached_property
    def topology(self) -> TopologySnapshot:
        return self.devices.snapshot()

    def moved(self, plan: OptimizedGraph) -> OptimizedGraph:
        return retarget(plan, CPU, REFERENCE, self.topology)

    def run(
        self, plan: OptimizedGraph, place: Location, rows: int, given: Values | None = None
    ) -> tuple[Values, list[np.ndarray]]:
        """(the values of the roots by the nodes they bring home, the slabs after the step)."""
        context, cache, env = InferenceContext(place, self.devices), self.cache(place), self.env(rows)
        ids = np.array(tokens_of(rows), np.int64)
        data = {
            **data_by_node(self.step, token_data(self.step, self.model, ids, CACHED)),
            **shape_data(self.step, rows, self.wanted(rows)),
            **(given or {}),
        }
        slabs = slab_bindings(self.step, cache)
        bound = context.bind(plan, Bindings(self.model.weights, slabs, data), env)
        results = context.compile(plan).bind(bound.of_graph(plan.graph_id), env).run(env, plan.roots)
        values = {plan.nodes[root].inputs[0]: value for root, value in results.items()}
        return values, self.worlds[place].cells(cache, CAPACITY)

    def wanted(self, rows: int) -> list[int]:
        """Rows whose logits are wanted, in no order."""
        return list(range(rows))[::-2]

    def env(self, rows: int) -> SymEnv:
        return step_env(CACHED, rows, len(self.wanted(rows)))

    def whole(self, rows: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """(name, the CPU device's, the reference's) of each root and slab."""
        mine, my_slabs = self.run(self.plan, CPU, rows)
        theirs, their_slabs = self.run(self.moved(self.plan), REFERENCE, rows)
        assert mine.keys() == theirs.keys()
        names = dict(zip(self.step.roots, ("logits", "argmax", "hidden"), strict=True))
        for root in mine:
            yield names[root], mine[root], theirs[root]
        for at, (slab, other) in enumerate(zip(my_slabs, their_slabs, strict=True)):
            yield f"slab {at}", slab, other

    def each(self, rows: int) -> tuple[list[Compared], list[tuple[np.ndarray, np.ndarray]]]:
        """Every node that computes, and the slabs (the CPU device's, the reference's); all from the
        reference's inputs."""
        whole = opened(self.plan, self.topology)
        theirs, their_slabs = self.run(self.moved(whole.plan), REFERENCE, rows)
        cut = opened(self.plan, self.topology, severed=True)
        given = {const: theirs[node] for node, const in cut.given.items()}
        mine, my_slabs = self.run(cut.plan, CPU, rows, given)
        found = [
            Compared(self, self.plan.nodes[node], rows, mine[node], theirs[node], theirs)
            for node in cut.copies
        ]
        return found, list(zip(my_slabs, their_slabs, strict=True))


@dataclass(frozen=True)
class Compared:
    """A node's value on both devices; `values` are all of the reference's."""

    pair: Pair
    node: Node
    rows: int
    mine: np.ndarray
    theirs: np.ndarray
    values: Values

    def __str__(self) -> str:
        return f"%{self.node.id} {self.node.op.name} {resolve(self.node.shape, self.pair.env(self.rows))}"

    @property
    def error(self) -> np.ndarray:
        """Of each row: the largest difference, relative to the largest value of all rows."""
        return relative(self.mine, self.theirs)

    @property
    def normed_first(self) -> ProductParts | None:
        """The parts of a product whose rows are normed and then rounded."""
        if not isinstance(self.node.op, Region) or not self.node.op.pattern.endswith("product"):
            return None
        parts = product_parts(self.node.op)
        return None if parts.norm is None or parts.rounding is None else parts

    @property
    def has_rests(self) -> bool:
        """Whether a norm's last bit decides what the rests of blocks are rounded to, in steps of d/254."""
        parts = self.normed_first
        return parts is not None and isinstance(parts.rounding, QuantizeRows)

    @property
    def doubtful(self) -> np.ndarray:
        """Rows in which a norm's last bit may decide what an element is rounded to: `[rows]` bool."""
        parts = self.normed_first
        if parts is None:
            return np.zeros(self.error.shape, bool)
        assert parts.norm is not None
        x = normed(parts.norm, *(self._operand(i) for i in (parts.x, *parts.norm_operands)))
        if parts.rounding == RoundBF16():
            steps = np.abs(np.frexp(x)[0]) * 256  # of its last digit
            return (np.abs(steps % 1 - 0.5) < 2 * IN_DOUBT).any(1)
        assert isinstance(parts.rounding, QuantizeRows)
        blocks = x.reshape(len(x), -1, parts.rounding.block)
        with np.errstate(invalid="ignore"):  # zeros alone leave no doubt
            steps = np.abs(blocks * 127 / np.abs(blocks).max(-1, keepdims=True))
        doubt: np.ndarray = (np.abs(steps % 1 - 0.5) < IN_DOUBT).any((1, 2))
        return doubt

    def _operand(self, index: int) -> np.ndarray:
        """An operand of the region's norm: rows, or a vector of weights as its file has it."""
        node = self.pair.plan.nodes[self.node.inputs[index]]
        if not isinstance(node.op, Const):
            return self.values[node.id]
        assert node.op.recipe is not None
        (name,) = node.op.recipe.names
        return self.pair.model.weights[name].rows().view(np.float32)[0]


IN_DOUBT = 2e-4
"""How far, in steps of which there are 127, a row normed in float32 may be from the exact one: the norms are
right within 1e-6."""


def relative(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Of each row, the largest difference, relative to the largest value of all rows; NaN equals NaN."""
    mine, theirs = (np.atleast_2d(values.astype(np.float64)) for values in (mine, theirs))
    np.testing.assert_array_equal(np.isnan(mine), np.isnan(theirs))
    scale = np.nanmax(np.abs(theirs))
    worst: np.ndarray = np.nan_to_num(np.abs(mine - theirs)).reshape(len(theirs), -1).max(1)
    return worst / scale if scale else worst


def normed(norm: RmsNorm | LayerNorm, x: np.ndarray, *vectors: np.ndarray) -> np.ndarray:
    """In float64."""
    x = x.astype(np.float64)
    if isinstance(norm, RmsNorm):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + norm.eps) * vectors[0]
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + norm.eps) * vectors[0] + vectors[1]
