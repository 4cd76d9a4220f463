"""A lowered segment: a flat list of kernel calls over places in memory that get their addresses when a slot
is bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.ir.shape import NodeId
from ostinato.ir.symbols import SymId


@dataclass(frozen=True, slots=True)
class Arena:
    """The workspace's memory for values that live within one run."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Workspace memory that starts as zeros and that its users leave as zeros."""


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """Where kernels report: code, index, size as i64; all zero while nothing went wrong."""


@dataclass(frozen=True, slots=True)
class Cell:
    """An i64 with the value that a symbol has in this run, or with a number."""

    dim: SymId | int


@dataclass(frozen=True, slots=True)
class Slot:
    """A storage bound from outside: an input or an output of the segment."""

    node: NodeId


Space = Arena | Counters | ErrorRecord | Cell | Slot


@dataclass(frozen=True, slots=True)
class Place:
    """`nbytes` bytes at `offset` of a space."""

    space: Space
    offset: int = 0
    nbytes: int = 8

    def meets(self, other: Place) -> bool:
        """Whether the two, of one space, share a byte."""
        return self.offset < other.offset + other.nbytes and other.offset < self.offset + self.nbytes

    def shifted(self, offset: int, nbytes: int) -> Place:
        return Place(self.space, self.offset + offset, nbytes)


@dataclass(frozen=True, slots=True)
class Items:
    """How much work a step is: `base · ceil(cell / divisor)` items, or `base` where there is no cell."""

    base: int
    cell: Place | None = None
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call, dealt to the threads by items. `barrier`: it waits for what ran before it."""

    kernel: Kernel
    args: tuple[Place | int, ...]
    items: Items
    writes: tuple[Place, ...]
    label: str
    slabs: bool = False
    barrier: bool = False

    @property
    def reads(self) -> tuple[Place, ...]:
        places = [arg for arg in self.args if isinstance(arg, Place)]
        if self.items.cell is not None:
            places.append(self.items.cell)
        return tuple(place for place in places if place not in self.writes)


@dataclass(frozen=True, slots=True)
class Tape:
    """Steps in order, and the workspace that they need."""

    steps: tuple[Step, ...]
    arena_bytes: int
    counter_bytes: int

    @property
    def scratch_bytes(self) -> int:
        """Of each thread."""
        return max((step.kernel.scratch_bytes for step in self.steps), default=0)


def with_barriers(steps: Sequence[Step]) -> tuple[Step, ...]:
    """A barrier before each step that touches what one since the last barrier wrote, or writes what one read.

    Within a step, items don't depend on each other; between two steps without a barrier, neither may they.
    """
    result: list[Step] = []
    touched: dict[Space, list[tuple[Place, bool]]] = defaultdict(list)
    slabs = False
    for step in steps:
        places = [(place, True) for place in step.writes] + [(place, False) for place in step.reads]
        places = [found for found in places if not isinstance(found[0].space, Cell | ErrorRecord)]
        conflict = (slabs and step.slabs) or any(
            (writes or written) and place.meets(other)
            for place, writes in places
            for other, written in touched.get(place.space, ())
        )
        if conflict:
            touched.clear()
            slabs = False
        for place, writes in places:
            touched[place.space].append((place, writes))
        slabs |= step.slabs
        result.append(replace(step, barrier=conflict))
    return tuple(result)
