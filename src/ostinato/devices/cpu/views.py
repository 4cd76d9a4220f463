"""How a value's elements lie in a buffer: an offset, extents, and a stride for each axis.

Ops that only move elements are other views of the same buffer, where strides can say what they do. Offsets
and strides count elements, and are numbers or numbers times symbols: one view serves every value of a symbol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ostinato.ir.dtype import DType
from ostinato.ir.op import Op
from ostinato.ir.ops import movement
from ostinato.ir.shape import DataDim, Dim, Shape
from ostinato.ir.symbols import SymId

Stride = int | tuple[int, *tuple[SymId, ...]]
"""A number of elements: `n`, or `(n, symbol)` for n times the symbol's value. Where an axis has two symbolic
ones to its right, `(n, symbol, symbol)`."""


@dataclass(frozen=True, slots=True)
class View:
    """Element [i, j, …] is number offset + i·strides[0] + j·strides[1] + … of the buffer."""

    offset: Stride
    shape: Shape
    strides: tuple[Stride, ...]
    dtype: DType


def times(*factors: Stride | Dim) -> Stride:
    """The product, in its one normal form: a number where no symbol is left, else symbols by name."""
    number = 1
    symbols: list[SymId] = []
    for factor in factors:
        assert not isinstance(factor, DataDim), "an extent that only the run knows has no stride beside it"
        if isinstance(factor, SymId):
            symbols.append(factor)
        elif isinstance(factor, int):
            number *= factor
        else:
            number *= factor[0]
            symbols += symbols_of(factor)
    if number == 0 or not symbols:
        return number
    return (number, *sorted(symbols, key=str))


def plus(a: Stride, b: Stride) -> Stride | None:
    """The sum, where it is one number times the same symbols."""
    if a == 0 or b == 0:
        return b if a == 0 else a
    if symbols_of(a) != symbols_of(b):
        return None
    return times(number_of(a) + number_of(b), *symbols_of(a))


def number_of(stride: Stride) -> int:
    """The number in the product."""
    return stride if isinstance(stride, int) else stride[0]


def symbols_of(*strides: Stride) -> tuple[SymId, ...]:
    """The symbols in the products, as often as they occur."""
    return tuple(s for stride in strides if not isinstance(stride, int) for s in stride[1:])


def row_major(shape: Shape) -> tuple[Stride, ...]:
    """Strides of elements one after another, the last axis fastest. Only the first extent may be one that is
    known by the run alone."""
    strides: list[Stride] = []
    step: Stride = 1
    for axis in reversed(range(len(shape))):
        strides.append(step)
        if axis > 0:
            step = times(step, shape[axis])
    return tuple(reversed(strides))


def contiguous(shape: Shape, dtype: DType) -> View:
    """A whole buffer in row-major order."""
    return View(0, shape, row_major(shape), dtype)


def is_contiguous(view: View) -> bool:
    """Whether the elements lie one after another in row-major order, from the offset on. Strides of axes with
    one entry say nothing, nor do those of a view without elements."""
    if 0 in view.shape:
        return True
    natural = row_major(view.shape)
    return all(
        extent == 1 or stride == expected
        for extent, stride, expected in zip(view.shape, view.strides, natural, strict=True)
    )


def moved(op: Op, view: View) -> View | None:
    """The result of `op` as a view of the same buffer; None where it needs a copy, and for ops that compute.

    Of a `contiguous` view each of the moving ops has one, Clone aside.
    """
    match op:
        case movement.Reshape():
            return reshaped(view, op.shape)
        case movement.Transpose():
            return replace(
                view,
                shape=tuple(view.shape[axis] for axis in op.order),
                strides=tuple(view.strides[axis] for axis in op.order),
            )
        case movement.Unsqueeze():
            at = op.axis
            step = times(view.strides[at], view.shape[at]) if at < len(view.shape) else 1
            return replace(
                view,
                shape=(*view.shape[:at], 1, *view.shape[at:]),
                strides=(*view.strides[:at], step, *view.strides[at:]),
            )
        case movement.Squeeze():
            return without_axis(view, op.axis)
        case movement.Slice():
            return _sliced(view, op)
    return None


def without_axis(view: View, axis: int) -> View:
    """The view at entry 0 of `axis`."""
    axis %= len(view.shape)
    return replace(
        view,
        shape=view.shape[:axis] + view.shape[axis + 1 :],
        strides=view.strides[:axis] + view.strides[axis + 1 :],
    )


def broadcast_to(view: View, shape: Shape) -> View:
    """numpy's broadcasting: repeated entries have stride 0."""
    added = len(shape) - len(view.shape)
    strides: list[Stride] = [0] * added
    for have, want, stride in zip(view.shape, shape[added:], view.strides, strict=True):
        assert have in (want, 1), f"{view.shape} doesn't broadcast to {shape}"
        strides.append(stride if have == want else 0)
    return replace(view, shape=shape, strides=tuple(strides))


def _sliced(view: View, op: movement.Slice) -> View | None:
    axis = op.axis % len(view.shape)
    offset = plus(view.offset, times(op.start, view.strides[axis]))
    if offset is None:
        return None
    shape = (*view.shape[:axis], op.stop - op.start, *view.shape[axis + 1 :])
    return replace(view, offset=offset, shape=shape)


def reshaped(view: View, shape: Shape) -> View | None:
    """numpy's rule for a reshape without a copy: each run of axes that lie as one is divided anew."""
    if 0 in shape:
        return replace(view, shape=shape, strides=row_major(shape))
    strides: list[Stride] = []
    runs = _runs(view)
    dims = list(shape)
    for extent, step in runs:
        parts: list[Dim] = []
        while dims and (times(*parts) != extent or dims[0] == 1):
            parts.append(dims.pop(0))
        if times(*parts) != extent:
            return None
        strides += (times(step, stride) for stride in row_major(tuple(parts)))
    if any(dim != 1 for dim in dims):
        return None
    strides += [1] * len(dims)
    return replace(view, shape=shape, strides=tuple(strides))


def _runs(view: View) -> Sequence[tuple[Stride, Stride]]:
    """(extent, stride) of the view's axes, neighbours taken together where they step as one axis would."""
    runs: list[tuple[Stride, Stride]] = []
    for extent, stride in zip(view.shape, view.strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == times(extent, stride):
            runs[-1] = times(runs[-1][0], extent), stride
        else:
            runs.append((times(extent), stride))
    return runs
