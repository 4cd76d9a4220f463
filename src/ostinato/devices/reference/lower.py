"""From a segment to a flat list of primitive steps over numbered registers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ostinato.device.segment import Segment
from ostinato.devices.reference.kernels import KERNELS, Kernel
from ostinato.ir.dtype import DType
from ostinato.ir.graph import Graph
from ostinato.ir.op import Composite, Op, Primitive
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.shape import NodeId, Shape


@dataclass(frozen=True, slots=True)
class Template:
    """A composite op written with primitives: operands are registers 0 … n-1, each step appends one."""

    steps: tuple[tuple[Primitive, tuple[int, ...]], ...]
    result: int


@lru_cache(maxsize=4096)
def template(op: Composite, operands: tuple[tuple[Shape, DType], ...]) -> Template:
    """`op.decompose()` over operands of these shapes, applied until only primitives are left.

    The layers of a model ask for the same few templates again and again.
    """
    scratch = Graph()
    inputs = [
        scratch.const(str(i), ConstRole.SLAB if i in op.writes else ConstRole.DATA, shape, dtype)
        for i, (shape, dtype) in enumerate(operands)
    ]
    result = op.decompose(*inputs)
    steps: list[tuple[Primitive, tuple[int, ...]]] = []
    register = {tensor.id: i for i, tensor in enumerate(inputs)}
    for node in scratch:
        if not isinstance(node.op, Const):
            ins = tuple(register[i] for i in node.inputs)
            shapes = tuple((scratch[i].shape, scratch[i].dtype) for i in node.inputs)
            register[node.id] = _append(steps, len(inputs), node.op, ins, shapes)
    return Template(tuple(steps), register[result.id])


def _append(
    steps: list[tuple[Primitive, tuple[int, ...]]],
    first: int,
    op: Op,
    ins: tuple[int, ...],
    shapes: tuple[tuple[Shape, DType], ...],
) -> int:
    """Append `op` (a composite as its template's steps) and return the register of its result."""
    if isinstance(op, Primitive):
        steps.append((op, ins))
        return first + len(steps) - 1
    assert isinstance(op, Composite)
    inner = template(op, shapes)
    base = first + len(steps) - len(ins)

    def outer(register: int) -> int:
        return ins[register] if register < len(ins) else base + register

    for primitive, registers in inner.steps:
        steps.append((primitive, tuple(outer(r) for r in registers)))
    return outer(inner.result)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One kernel call; `drop` are the registers that nothing reads afterwards."""

    kernel: Kernel
    op: Primitive
    inputs: tuple[int, ...]
    output: int
    drop: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tape:
    """A lowered segment: inputs are in registers 0 … n-1, outputs in the registers named."""

    instructions: tuple[Instruction, ...]
    registers: int
    outputs: dict[NodeId, int]


def lower(segment: Segment) -> Tape:
    """Decompose composites and number every value."""
    register = {slot.node: i for i, slot in enumerate(segment.inputs)}
    types = {slot.node: (slot.shape, slot.dtype) for slot in segment.inputs}
    steps: list[tuple[Primitive, tuple[int, ...]]] = []
    first = len(segment.inputs)
    for node in segment.nodes:
        shapes = tuple(types[i] for i in node.inputs)
        register[node.id] = _append(steps, first, node.op, tuple(register[i] for i in node.inputs), shapes)
        types[node.id] = (node.shape, node.dtype)
    outputs = {slot.node: register[slot.node] for slot in segment.outputs}
    return Tape(_with_drops(steps, first, set(outputs.values())), first + len(steps), outputs)


def _with_drops(
    steps: list[tuple[Primitive, tuple[int, ...]]], first: int, kept: set[int]
) -> tuple[Instruction, ...]:
    last_use = {r: at for at, (_, registers) in enumerate(steps) for r in registers}
    instructions = []
    for at, (op, inputs) in enumerate(steps):
        drop = tuple(r for r in set(inputs) if r >= first and last_use[r] == at and r not in kept)
        instructions.append(Instruction(KERNELS[type(op)], op, inputs, first + at, drop))
    return tuple(instructions)
