"""The kernel of one primitive over strided views: what runs where no faster kernel is there.

Composites run by their decomposition into these, so every graph runs that has no op refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ostinato.devices.cpu.kernels.loops.base import LoopKernel
from ostinato.devices.cpu.kernels.loops.copy import CopyElements, Join
from ostinato.devices.cpu.kernels.loops.elementwise import COMPUTED, Elementwise
from ostinato.devices.cpu.kernels.loops.gather import GatherRows
from ostinato.devices.cpu.kernels.loops.leaves import Fill, iota
from ostinato.devices.cpu.kernels.loops.product import MatrixProduct
from ostinato.devices.cpu.kernels.loops.reduce import LargestIndex, Reduce
from ostinato.devices.cpu.views import View, contiguous, is_contiguous, moved
from ostinato.ir.op import Primitive
from ostinato.ir.ops import const, elementwise, movement, product, reduce
from ostinato.ir.shape import is_sized

_KERNELS: Mapping[type[Primitive], Callable[[Primitive, tuple[View, ...], View], LoopKernel]] = {
    const.Scalar: Fill,
    const.SymbolValue: Fill,
    **dict.fromkeys((*COMPUTED, elementwise.Cast), Elementwise),
    reduce.Sum: Reduce,
    reduce.Max: Reduce,
    reduce.ArgMax: LargestIndex,
    movement.Clone: CopyElements,
    movement.Concat: Join,
    movement.Gather: GatherRows,
    product.MatMul: MatrixProduct,
}

_MOVED = (movement.Reshape, movement.Transpose, movement.Unsqueeze, movement.Squeeze, movement.Slice)


def loop_kernel(
    op: Primitive, inputs: Sequence[View], output: View, bound: int | None = None
) -> LoopKernel | None:
    """The kernel of `op` over these views; the output's buffer must be none of the inputs'.

    None for what it has no loops for: slabs, quantised rows and selected products, which have kernels of
    their own; extents that only the run knows, but for an Iota of at most `bound`; and a Reshape that neither
    the operand nor the output has a view for.
    """
    views = tuple(inputs)
    if isinstance(op, const.Iota):
        return iota(op, views, output, bound)
    if not all(is_sized(view.shape) for view in (*views, output)):
        return None
    if isinstance(op, _MOVED):
        return _copied(op, views[0], output)
    kernel = _KERNELS.get(type(op))
    return None if kernel is None else kernel(op, views, output)


def _copied(op: Primitive, view: View, output: View) -> LoopKernel | None:
    """A moving op into memory of its own."""
    source = moved(op, view)
    if source is not None:
        return CopyElements(movement.Clone(), (source,), output)
    if isinstance(op, movement.Reshape) and is_contiguous(output):  # the output seen as the operand is
        return CopyElements(
            movement.Clone(), (view,), replace(contiguous(view.shape, view.dtype), offset=output.offset)
        )
    return None
