"""Products of activation rows with a packed weight, and what is fused around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32V, I64
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.kernels.math import gelu_tanh, silu
from ostinato.devices.cpu.kernels.rows import RowSpec, prepare_row, row_bytes
from ostinato.devices.cpu.weights import FORMS, GROUP, PackedForm
from ostinato.devices.cpu.weights.packed import MOST, tile

_ACTIVATIONS: Mapping[str, Callable[[Function, Value], Value]] = {"silu": silu, "gelu_tanh": gelu_tanh}
_EARLY = 48
"""Lines of weights that are asked for before the row is prepared."""
_VECTOR = 4 * GROUP
"""Bytes of a group's sums."""


@dataclass(frozen=True)
class Product(Kernel):
    """`activation(w · row + bias) + residual` in f32, an item for each 16 outputs.

    A row's results have the same bits in either kernel, beside any others.

    Args:
        form: Name of the weight's packed form.
        k: Elements of a row.
        n: Rows of the weight, and elements of `bias`, in the weight's order.
        prepare: How the one row `x` is normed and quantised, which each call does for itself. None: it comes
            prepared.
        activation: None, "silu" or "gelu_tanh".
        gated: In the weight 16 gate rows and 16 up rows take turns, and an output is silu(gate) * up, or with
            the activation that is named: `n / 2` outputs.
        residual: Added last. It may be the memory of `out`.
        many: `rows_in` holds prepared rows one after another, and `rows` is the address of their number.
    """

    form: str
    k: int
    n: int
    prepare: RowSpec | None = None
    activation: str | None = None
    gated: bool = False
    bias: bool = False
    residual: bool = False
    many: bool = False

    @property
    def params(self) -> tuple[str, ...]:
        row = ("x", *(self.prepare.norm_params if self.prepare is not None else ()))
        added = (name for name, there in (("bias", self.bias), ("residual", self.residual)) if there)
        if self.many:
            return ("rows_in", "w", *added, "out", "rows")
        return (*row, "w", *added, "out")

    @property
    def width(self) -> int:
        """Elements of a row of `out`, and of `residual`."""
        return self.n // 2 if self.gated else self.n

    @property
    def items(self) -> int:
        return -(-self.width // GROUP)

    def row_bytes(self, isa: Isa) -> int:
        """Bytes from one prepared row to the next."""
        form = FORMS[self.form]
        return row_bytes(RowSpec(self.k, rounding=form.rounding(isa), sums=form.sums))

    @property
    def scratch_bytes(self) -> int:
        if self.many:
            return MOST * self._groups * _VECTOR
        return row_bytes(self.prepare) if self.prepare is not None else 0

    @property
    def shared(self) -> bool:
        return self.many

    @property
    def _groups(self) -> int:
        """Groups of the weight that an item takes."""
        return 2 if self.gated else 1

    def body(self, f: Function, args: dict[str, Value]) -> None:
        if self.many:
            self._many(f, args)
        else:
            self._one(f, args)

    def _one(self, f: Function, args: dict[str, Value]) -> None:
        form, row = FORMS[self.form], args["x"]
        if self.prepare is not None:
            first = self._weights(f, form, args, f["low"])[0]
            for line in range(_EARLY):  # memory works while the row is prepared: 2 % of a decode step
                f.prefetch(first, 64 * line)
            row = f["scratch"]
            prepare_row(f, self.prepare, args["x"], [args[name] for name in self.prepare.norm_params], row)
        for item, _ in f.range(f["low"], f["high"]):
            weights = self._weights(f, form, args, item)
            sums = [form.dot(f, f.module.isa, self.k, w, [row])[0] for w in weights]
            self._finish(f, args, item, f.index(0), sums)

    def _many(self, f: Function, args: dict[str, Value]) -> None:
        form, rows = FORMS[self.form], f.load(I64, args["rows"])
        for item, _ in f.range(f["low"], f["high"]):
            weights = self._weights(f, form, args, item)
            at, count = f.index(0), tile(f.module.isa)
            while count > 0:
                for first, _ in f.range(at, rows - (count - 1), count):
                    self._rows(f, form, args, item, weights, first, count)
                at, count = first, count // 2  # after the loop `first` is the first row that it left

    def _rows(
        self,
        f: Function,
        form: PackedForm,
        args: dict[str, Value],
        item: Value,
        weights: list[Value],
        first: Value,
        count: int,
    ) -> None:
        """`count` rows from `first` on: sums go through scratch memory, so the rest is code for one."""
        nbytes = self.row_bytes(f.module.isa)
        start = f.at(args["rows_in"], first * nbytes)
        rows = [f.at(start, t * nbytes) for t in range(count)]
        # A tile computes for longer than its weights take to come: the next item's come meanwhile. Fewer rows
        # wait for memory anyway.
        ahead = self._groups * form.group_bytes(self.k) if count == tile(f.module.isa) else 0
        for g, w in enumerate(weights):
            for t, total in enumerate(form.dot(f, f.module.isa, self.k, w, rows, ahead)):
                f.store(total, f["scratch"], (t * self._groups + g) * _VECTOR)
        for i, _ in f.range(0, count):
            sums = f.at(f["scratch"], i * (self._groups * _VECTOR))
            found = [f.load(F32V, sums, g * _VECTOR) for g in range(self._groups)]
            self._finish(f, args, item, first + i, found)

    def _weights(self, f: Function, form: PackedForm, args: dict[str, Value], item: Value) -> list[Value]:
        """The item's groups."""
        nbytes = form.group_bytes(self.k)
        first = f.at(args["w"], item * (self._groups * nbytes))
        return [f.at(first, g * nbytes) for g in range(self._groups)]

    def _finish(
        self, f: Function, args: dict[str, Value], item: Value, row: Value, sums: list[Value]
    ) -> None:
        """From the sums of the item's groups to 16 outputs of a row, fewer at its end."""
        count: Value | int = GROUP
        if self.width % GROUP:
            count = (self.width - item * GROUP).min(GROUP)
        if self.bias:
            bias = f.at(args["bias"], item * (self._groups * _VECTOR))
            sums = [total + f.load_part(F32V, bias, g * _VECTOR, count) for g, total in enumerate(sums)]
        value = sums[0]
        activation = self.activation or ("silu" if self.gated else None)
        if activation is not None:
            value = _ACTIVATIONS[activation](f, value)
        if self.gated:
            value = value * sums[1]
        offset = row * (4 * self.width) + item * _VECTOR
        if self.residual:
            value = value + f.load_part(F32V, args["residual"], offset, count)
        f.store_part(value, args["out"], offset, count)
