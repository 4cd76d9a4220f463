"""A tape as numbers: what the native runner reads, position-independent until a slot is bound.

One int64 array holds the steps (8 cells each, see `runner`), the kernels' argument cells, the symbols' cells
and the error record. A bound program has its own copy with addresses in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ostinato.devices.cpu.runner import BARRIER, SHARED
from ostinato.devices.cpu.tape import Arena, Cell, Counters, ErrorRecord, Place, Slot, Tape
from ostinato.ir.shape import NodeId
from ostinato.ir.symbols import SymEnv, SymId

Cells = npt.NDArray[np.int64]
STEP_CELLS = 8
PROFILE = 2
"""The cell of a job record with the address of a profile buffer, see `runner`."""


@dataclass(frozen=True, slots=True)
class Fixups:
    """Cells that hold an address within some memory: which ones, and how far into it they point."""

    cells: npt.NDArray[np.intp]
    offsets: Cells

    def apply(self, image: Cells, base: int) -> None:
        image[self.cells] = self.offsets + base


@dataclass(frozen=True, slots=True)
class Image:
    """The template. `own` are cells that point into the image itself."""

    template: Cells
    steps: int
    own: Fixups
    arena: Fixups
    counters: Fixups
    slots: Mapping[NodeId, Fixups]
    symbols: Mapping[SymId, int]
    error: int
    """The first cell of the error record."""

    @classmethod
    def of(cls, tape: Tape, addresses: Sequence[int]) -> Image:
        """The image of a tape whose step i calls the kernel at `addresses[i]`."""
        first_arg = len(tape.steps) * STEP_CELLS
        arg_cells = sum(len(step.args) for step in tape.steps)
        cells = _Cells(first_arg + arg_cells)
        fixups: dict[object, list[tuple[int, int]]] = defaultdict(list)
        template = np.zeros(first_arg + arg_cells, np.int64)

        def point(at: int, place: Place) -> None:
            space = place.space
            if isinstance(space, Cell):
                fixups["own"].append((at, 8 * cells.of(space)))
            elif isinstance(space, ErrorRecord):
                fixups["own"].append((at, 8 * cells.error + place.offset))
            else:
                fixups[space].append((at, place.offset))

        at = first_arg
        for i, (step, address) in enumerate(zip(tape.steps, addresses, strict=True)):
            head = i * STEP_CELLS
            items = step.items
            flags = BARRIER * step.barrier | SHARED * step.kernel.shared
            template[head : head + STEP_CELLS] = (
                address, 0, items.base, 0, items.divisor, flags, 0, 0,
            )  # fmt: skip
            fixups["own"].append((head + 1, 8 * at))
            if items.cell is not None:
                point(head + 3, items.cell)
            for arg in step.args:
                if isinstance(arg, Place):
                    point(at, arg)
                else:
                    template[at] = arg
                at += 1
        return cls(
            template=np.concatenate([template, cells.values()]),
            steps=len(tape.steps),
            own=_fixups(fixups["own"]),
            arena=_fixups(fixups[Arena()]),
            counters=_fixups(fixups[Counters()]),
            slots={space.node: _fixups(found) for space, found in fixups.items() if isinstance(space, Slot)},
            symbols=cells.symbols,
            error=cells.error,
        )


class _Cells:
    """The cells behind the arguments: the error record, then one for each symbol and each number."""

    def __init__(self, first: int) -> None:
        self.error = first
        self._first = first + 3
        self._dims: list[SymId | int] = []

    def of(self, cell: Cell) -> int:
        if cell.dim not in self._dims:
            self._dims.append(cell.dim)
        return self._first + self._dims.index(cell.dim)

    @property
    def symbols(self) -> dict[SymId, int]:
        return {dim: self._first + i for i, dim in enumerate(self._dims) if isinstance(dim, SymId)}

    def values(self) -> Cells:
        numbers = [dim if isinstance(dim, int) else 0 for dim in self._dims]
        return np.array([0, 0, 0, *numbers], np.int64)


def _fixups(found: Sequence[tuple[int, int]]) -> Fixups:
    cells, offsets = zip(*found, strict=True) if found else ((), ())
    return Fixups(np.array(cells, np.intp), np.array(offsets, np.int64))


class Job:
    """An image with addresses in it, ready for the pool: a job record, and the cells it points to.

    It keeps no memory alive but its own.
    """

    def __init__(self, image: Image, arena: int = 0, counters: int = 0) -> None:
        self._image = image
        self._cells = image.template.copy()
        base = self._cells.ctypes.data
        image.own.apply(self._cells, base)
        image.arena.apply(self._cells, arena)
        image.counters.apply(self._cells, counters)
        self._pointed: dict[NodeId, int] = {}
        self.error = self._cells[image.error : image.error + 3]
        self.record = np.zeros(8, np.int64)
        self.record[:2] = base, image.steps
        self.address = self.record.ctypes.data

    def point(self, slot: NodeId, address: int) -> None:
        """Have every argument that means `slot` point to `address`."""
        if self._pointed.get(slot) != address:
            self._pointed[slot] = address
            fixups = self._image.slots.get(slot)
            if fixups is not None:
                fixups.apply(self._cells, address)

    def set_symbols(self, env: SymEnv) -> None:
        """Raises UnboundSymbol."""
        for symbol, cell in self._image.symbols.items():
            self._cells[cell] = env.resolve(symbol)
