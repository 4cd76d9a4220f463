"""Products with packed weights: a region's norm, quantisation, activation and residual run in the product's
own kernel where the plan has one row, else the rows are prepared first, once for all threads."""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.devices.cpu.kernels.norms import Norm
from ostinato.devices.cpu.kernels.product import Product
from ostinato.devices.cpu.kernels.rows import PrepareRows, RowSpec, row_bytes
from ostinato.devices.cpu.lowering import Located, Lower, Lowering
from ostinato.devices.cpu.tape import Items, Place
from ostinato.devices.cpu.weights import GROUP, PackedForm
from ostinato.ir.graph import Node
from ostinato.ir.op import Op
from ostinato.ir.ops.nn import GeluTanh, RmsNorm, Silu
from ostinato.ir.ops.product import Linear
from ostinato.ir.ops.region import Region
from ostinato.plan.regions.product import ProductParts, product_parts

_ACTIVATIONS: Mapping[type[Op], str] = {GeluTanh: "gelu_tanh", Silu: "silu"}


def product(low: Lowering, node: Node) -> bool:
    """The patterns "product" and "gated_product"."""
    assert isinstance(node.op, Region)
    return _product(low, node, product_parts(node.op))


def _linear(low: Lowering, node: Node) -> bool:
    """A product that no region took in."""
    parts = ProductParts(
        norm=None,
        norm_operands=(),
        rounding=None,
        weight=1,
        bias=2 if len(node.inputs) == 3 else None,
        activation=None,
        gated=None,
        residual=None,
    )
    return low.form(node.inputs[1]) is not None and _product(low, node, parts)


PRODUCTS: Mapping[type[Op], Lower] = {Linear: _linear}


def _product(low: Lowering, node: Node, parts: ProductParts) -> bool:
    weight = node.inputs[parts.weight]
    form = low.form(weight)
    assert form is not None, "the planner joins and fuses only products with packed weights"
    n, k = (low.bound(dim) for dim in low[weight].view.shape)
    rows = node.shape[0]
    one = low.is_one(rows)
    spec = _spec(parts, k, form)
    x, stride = low.rows(low[node.inputs[parts.x]])
    norm = [low.at(low.compact(low[node.inputs[i]])) for i in parts.norm_operands]

    kernel = Product(
        form=form.name,
        k=k,
        n=n,
        prepare=spec if one else None,
        activation=None if parts.activation is None else _ACTIVATIONS[type(parts.activation)],
        gated=parts.gated is not None,
        bias=parts.bias is not None,
        residual=parts.residual is not None,
        many=not one,
    )
    args: dict[str, Place | int] = {"w": low[weight].place}
    if one:
        args |= {"x": low.at(x), **dict(zip(("norm_weight", "norm_bias"), norm, strict=False))}
    else:
        args |= {"rows_in": _prepared(low, node, x, stride, spec, norm, form), "rows": low.cell(rows)}
    if parts.bias is not None:
        args["bias"] = low.at(low.compact(low[node.inputs[parts.bias]]))
    if parts.residual is not None:
        args["residual"] = low.at(low.compact(low[node.inputs[parts.residual]]))
    args["out"] = low.target(node).place
    low.emit(kernel, args, Items(-(-n // (2 * GROUP if kernel.gated else GROUP))))
    return True


def _spec(parts: ProductParts, k: int, form: PackedForm) -> RowSpec | None:
    """How a row is prepared; None where the product takes it as it is."""
    if parts.norm is None:
        return RowSpec(k, rounding=parts.rounding, sums=form.sums) if parts.rounding is not None else None
    norm: Norm = "rms" if isinstance(parts.norm, RmsNorm) else "layer"
    return RowSpec(k, norm, parts.norm.eps, parts.rounding, form.sums)


def _prepared(
    low: Lowering,
    node: Node,
    x: Located,
    stride: int,
    spec: RowSpec | None,
    norm: list[Place],
    form: PackedForm,
) -> Place:
    """All rows of x as the product wants them, one after another."""
    if spec is None and stride == low.bound(x.view.shape[1]):
        return low.at(x)
    spec = spec or RowSpec(low.bound(x.view.shape[1]))
    room = low.temporary(low.bound(node.shape[0]) * row_bytes(spec))
    args: dict[str, Place | int] = {"x": low.at(x), "out": room}
    args |= dict(zip(("norm_weight", "norm_bias"), norm, strict=False))
    low.emit(PrepareRows(spec, x_stride=stride), args, low.items(node.shape[0]))
    return room
