"""Shapes, and the lengths and positions of slab ops.

A dimension is a number, a symbol with one value a pass, or the value of a rank-0 node that is only known
while the pass runs. Shapes compare by identity of their dimensions: `rows` equals `rows` and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import NewType

from ostinato.errors.graph import DataDependentExtent
from ostinato.ir.symbols import SymEnv, SymId

NodeId = NewType("NodeId", int)
"""A node's index in its graph; stays the same through optimisation."""


@dataclass(frozen=True, slots=True)
class DataDim:
    """An extent that is the value of the rank-0 int64 node `node`."""

    node: NodeId

    def __str__(self) -> str:
        return f"%{self.node}"


@dataclass(frozen=True, slots=True)
class Operand:
    """A length that rides in the op's input number `index`, a rank-0 int64 node."""

    index: int

    def __str__(self) -> str:
        return f"input{self.index}"


Dim = int | SymId | DataDim
Shape = tuple[Dim, ...]
Extent = int | SymId
Length = int | SymId | Operand
"""What every op on a KV slab takes for a position or an extent."""


def show(shape: Iterable[Dim]) -> str:
    """`[rows, 576]`"""
    return "[" + ", ".join(str(dim) for dim in shape) + "]"


def is_sized(shape: Shape) -> bool:
    """Numbers and symbols alone: the size is known before a run."""
    return not any(isinstance(dim, DataDim) for dim in shape)


def is_static(shape: Shape) -> bool:
    """Every dimension is a number."""
    return all(isinstance(dim, int) for dim in shape)


def elements(shape: Shape, env: SymEnv) -> int:
    """Number of elements once the symbols have values; a DataDim has none outside the run."""
    return prod(resolve(shape, env))


def resolve(shape: Shape, env: SymEnv) -> tuple[int, ...]:
    """The shape in numbers; raises UnboundSymbol, or DataDependentExtent for a DataDim."""
    resolved = []
    for dim in shape:
        if isinstance(dim, DataDim):
            raise DataDependentExtent("a value", show(shape))
        resolved.append(env.resolve(dim))
    return tuple(resolved)


def broadcast(left: Shape, right: Shape) -> Shape | None:
    """numpy's broadcasting rule over symbolic dimensions; None when the shapes don't fit."""
    width = max(len(left), len(right))
    left = (1,) * (width - len(left)) + left
    right = (1,) * (width - len(right)) + right
    result: list[Dim] = []
    for a, b in zip(left, right, strict=True):
        if a == b or b == 1:
            result.append(a)
        elif a == 1:
            result.append(b)
        else:
            return None
    return tuple(result)


def factors(shape: Shape) -> tuple[int, tuple[str, ...]]:
    """The element count as (number, sorted symbols): equal for two shapes that reshape into each other."""
    number = prod(dim for dim in shape if isinstance(dim, int))
    return number, tuple(sorted(str(dim) for dim in shape if not isinstance(dim, int)))
