"""What lowering knows while it goes through a segment: where each value is, and the steps so far.

Each node becomes kernel calls over places in memory, or another view of a place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ostinato.device.segment import Segment
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.kernels.loopnest import loop_kernel
from ostinato.devices.cpu.slabs import slab_kind
from ostinato.devices.cpu.tape import (
    Arena,
    Cell,
    Counters,
    ErrorRecord,
    Items,
    Place,
    Slot,
    Step,
    Tape,
    with_barriers,
)
from ostinato.devices.cpu.views import View, contiguous, is_contiguous, moved
from ostinato.devices.cpu.weights import STORED, PackedForm
from ostinato.errors.device import NoKernel
from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding, plain
from ostinato.ir.graph import Graph, Node
from ostinato.ir.op import Composite, Op, Primitive
from ostinato.ir.ops import movement
from ostinato.ir.ops.attention import Attention
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.ops.region import Region
from ostinato.ir.ops.slab import SlabWrite
from ostinato.ir.shape import Dim, NodeId, Shape
from ostinato.ir.symbols import SymId

LINE = 64
"""Bytes of a cache line: everything in the arena starts on one."""

_MOVES = frozenset[type[Op]](
    [movement.Reshape, movement.Transpose, movement.Unsqueeze, movement.Squeeze, movement.Slice]
)


@dataclass(frozen=True, slots=True)
class Located:
    """A value: where its buffer is and how its elements lie in it."""

    place: Place
    view: View


Lower = Callable[["Lowering", Node], bool]
"""Lowers a node with kernels made for its op; False where it has none for this one."""


class Lowering:
    """The state of one segment's lowering; `node` dispatches on ops, the rest are tools for it."""

    def __init__(self, segment: Segment, special: Mapping[type[Op], Lower]) -> None:
        self.segment = segment
        self._special = special
        self.slots = {slot.node: slot for slot in (*segment.inputs, *segment.outputs)}
        self._outputs = {slot.node for slot in segment.outputs}
        self._values: dict[NodeId, Located] = {}
        self._encodings = {slot.node: slot.encoding for slot in segment.inputs}
        self.steps: list[Step] = []
        self._label = ""
        self._temporary = segment.memory.nbytes
        self._arena_bytes = segment.memory.nbytes
        self._counter_bytes = 0
        for slot in segment.inputs:
            self._values[slot.node] = self._whole(Slot(slot.node), slot.shape, slot.dtype)

    # what is where

    def __getitem__(self, node: NodeId) -> Located:
        return self._values[node]

    def form(self, node: NodeId) -> PackedForm | None:
        """The packed form of a weight, None for what is plain."""
        slot = self.slots.get(node)
        return None if slot is None else STORED.get(slot.encoding)

    def bound(self, dim: Dim) -> int:
        """The largest value of a dimension in this plan."""
        if isinstance(dim, int):
            return dim
        assert isinstance(dim, SymId), "extents that only the run knows live inside attention"
        return self.segment.bounds[dim]

    def count(self, shape: Shape) -> int:
        return prod(self.bound(dim) for dim in shape)

    def is_one(self, dim: Dim) -> bool:
        """Whether a row count is always 1 in this plan."""
        return self.bound(dim) == 1

    def cell(self, dim: Dim) -> Place:
        assert isinstance(dim, int | SymId)
        return Place(Cell(dim))

    def items(self, dim: Dim, each: int = 1) -> Items:
        """`each` items for every one of `dim`."""
        if isinstance(dim, int):
            return Items(dim * each)
        return Items(1, None) if self.is_one(dim) and each == 1 else Items(each, self.cell(dim))

    def _whole(self, space: Slot | Arena, shape: Shape, dtype: DType, offset: int = 0) -> Located:
        nbytes = self.count(shape) * dtype.nbytes if all(_sized(d) for d in shape) else 0
        return Located(Place(space, offset, nbytes), contiguous(shape, dtype))

    def target(self, node: Node) -> Located:
        """Room for a node's value: its output storage, or its part of the arena."""
        if node.id in self._outputs:
            value = self._whole(Slot(node.id), node.shape, node.dtype)
        else:
            value = self._whole(Arena(), node.shape, node.dtype, self.segment.memory.offsets[node.id])
        self._values[node.id] = value
        return value

    def same_memory(self, node: NodeId, other: NodeId) -> None:
        """The node's value is the other's, written in place."""
        self._values[node] = self._values[other]
        self._encodings[node] = self._encodings[other]

    def slab_encoding(self, slab: NodeId) -> Encoding:
        """How a slab is stored, whatever writes it has been through."""
        return self._encodings[slab]

    def temporary(self, nbytes: int) -> Place:
        """Arena bytes that only the node at hand uses; the next node's take their place."""
        place = Place(Arena(), self._temporary, nbytes)
        self._temporary += -(-nbytes // LINE) * LINE
        self._arena_bytes = max(self._arena_bytes, self._temporary)
        return place

    def counters(self, nbytes: int) -> Place:
        """Zeroed memory that no other step uses."""
        place = Place(Counters(), self._counter_bytes, nbytes)
        self._counter_bytes += -(-nbytes // LINE) * LINE
        return place

    def at(self, value: Located) -> Place:
        """The address of a value's first element; the view's offset must be a number."""
        offset = value.view.offset
        assert isinstance(offset, int)
        skipped = offset * value.view.dtype.nbytes
        return value.place.shifted(skipped, max(0, value.place.nbytes - skipped))

    def compact(self, value: Located) -> Located:
        """The value in row-major order at a fixed offset: itself, or a copy of it."""
        if isinstance(value.view.offset, int) and is_contiguous(value.view):
            return value
        return self.copied(value)

    def rows(self, value: Located) -> tuple[Located, int]:
        """A `[rows, k]` value whose rows are packed elements, and its row stride in elements."""
        stride, step = value.view.strides[0], value.view.strides[1]
        k = self.bound(value.view.shape[1])
        fits = isinstance(value.view.offset, int) and (step == 1 or k == 1)
        if fits and self.is_one(value.view.shape[0]):
            return value, k
        if fits and isinstance(stride, int):
            return value, stride
        return self.copied(value), k

    def copied(self, value: Located) -> Located:
        """The value in row-major order in memory that the node at hand alone uses."""
        view = value.view
        room = self.temporary(self.count(view.shape) * view.dtype.nbytes)
        copy = Located(room, contiguous(view.shape, view.dtype))
        self.primitive(movement.Clone(), [value], copy)
        return copy

    # steps

    def emit(
        self,
        kernel: Kernel,
        args: Mapping[str, Place | int],
        items: Items,
        writes: Sequence[str] = ("out",),
        *,
        slabs: bool = False,
    ) -> None:
        """One kernel call; `args` by parameter name, `error` and `code_n` filled in where it has them."""
        known = {"error": Place(ErrorRecord(), 0, 24), "code_n": len(self.steps) + 1, **args}
        places = tuple(known[name] for name in kernel.params)
        written = tuple(place for name in writes if isinstance(place := known[name], Place))
        self.steps.append(Step(kernel, places, items, written, self._label, slabs))

    def primitive(self, op: Primitive, inputs: Sequence[Located], out: Located) -> None:
        """A loop nest for one primitive."""
        kernel = loop_kernel(op, [value.view for value in inputs], out.view)
        if kernel is None:
            raise NoKernel(
                op.name, str(out.view.dtype), str(plain(out.view.dtype)), str(self.segment.location)
            )
        args: dict[str, Place | int] = {f"in{i}": value.place for i, value in enumerate(inputs)}
        args["out"] = out.place
        for symbol in kernel.symbols:
            args[str(symbol)] = self.cell(symbol)
        base, multiplier, divisor = kernel.work()
        items = Items(base) if multiplier is None else Items(base, self.cell(multiplier), divisor)
        self.emit(kernel, args, items)

    # nodes

    def node(self, node: Node) -> None:
        """Lower one node of the segment."""
        self._temporary = self.segment.memory.nbytes
        self._label = f"%{node.id} {node.op.name}"
        self._check_slabs(node)
        inputs = [self._values[i] for i in node.inputs]
        if type(node.op) in _MOVES:
            view = moved(node.op, inputs[0].view)
            if view is not None and node.id not in self._outputs:
                self._values[node.id] = Located(inputs[0].place, view)
                return
            self._move(node.op, inputs[0], self.target(node), view)
            return
        lower = self._special.get(type(node.op))
        if lower is not None and lower(self, node):
            return
        packed = next((self.slots[i].encoding for i in node.inputs if self.form(i) is not None), None)
        if packed is not None or not all(_sized(dim) for dim in node.shape):
            encoding = str(packed or plain(node.dtype))
            raise NoKernel(node.op.name, str(node.dtype), encoding, str(self.segment.location))
        self.apply(node.op, inputs, self.target(node))

    def _check_slabs(self, node: Node) -> None:
        """Only kernels made for them know how slabs lie. Raises NoKernel."""
        if not isinstance(node.op, SlabWrite | Attention | Region):
            for encoding in (self._encodings.get(i) for i in node.inputs):
                if encoding is not None and slab_kind(encoding) is not None:
                    raise NoKernel(node.op.name, str(node.dtype), str(encoding), str(self.segment.location))

    def apply(self, op: Op, inputs: Sequence[Located], out: Located) -> None:
        """Any op by its definition: primitives as loop nests, composites by their decomposition."""
        if isinstance(op, Primitive):
            self.primitive(op, inputs, out)
            return
        assert isinstance(op, Composite)
        body = decomposed(op, tuple((value.view.shape, value.view.dtype) for value in inputs))
        values = dict(enumerate(inputs))
        last = len(inputs) + len(body) - 1
        for at, (inner, reads, shape, dtype) in enumerate(body, len(inputs)):
            operands = [values[i] for i in reads]
            view = moved(inner, operands[0].view) if type(inner) in _MOVES else None
            if view is not None and at != last:
                values[at] = Located(operands[0].place, view)
                continue
            target = out
            if at != last:
                target = Located(self.temporary(self.count(shape) * dtype.nbytes), contiguous(shape, dtype))
            if type(inner) in _MOVES:
                self._move(inner, operands[0], target, view)
            else:
                self.apply(inner, operands, target)
            values[at] = target

    def _move(self, op: Op, source: Located, target: Located, view: View | None) -> None:
        """A moved value in memory of its own."""
        if view is None:  # a reshape that no view can be
            source = self.copied(source)
            view = moved(op, source.view)
            assert view is not None
        self.primitive(movement.Clone(), [Located(source.place, view)], target)

    def tape(self) -> Tape:
        return Tape(with_barriers(self.steps), self._arena_bytes, self._counter_bytes)


def _sized(dim: Dim) -> bool:
    return isinstance(dim, int | SymId)


@lru_cache(maxsize=1024)
def decomposed(
    op: Composite, operands: tuple[tuple[Shape, DType], ...]
) -> tuple[tuple[Op, tuple[int, ...], Shape, DType], ...]:
    """`op.decompose()` over such operands: ops and what they read, operands first."""
    scratch = Graph()
    role = ConstRole.DATA
    inputs = [scratch.const(str(i), role, shape, dtype) for i, (shape, dtype) in enumerate(operands)]
    result = op.decompose(*inputs)
    body = [
        (node.op, tuple(int(i) for i in node.inputs), node.shape, node.dtype)
        for node in scratch
        if not isinstance(node.op, Const)
    ]
    assert result.id == len(scratch) - 1, "a decomposition ends with its result"
    return tuple(body)
