"""Embedding: rows of a packed table, decoded."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I64
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.weights import FORMS, GROUP


@dataclass(frozen=True)
class Embed(Kernel):
    """An item is a row: `out[i]` f32 `[k]` becomes row `ids[i]` (i64) of the table `w` of `n` rows.

    An id outside the table leaves its row unwritten and stores (code, id, n) into `error`.
    """

    form: str
    n: int
    k: int

    @property
    def params(self) -> tuple[str, ...]:
        return ("ids", "w", "out", "error", "code_n")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        form = FORMS[self.form]
        for i, _ in f.range(f["low"], f["high"]):
            row = f.load(I64, args["ids"], i * 8)
            inside = row.below(self.n)
            for _ in f.when(inside):
                group = f.at(args["w"], (row // GROUP) * form.group_bytes(self.k))
                form.unpack(f, self.k, group, row % GROUP, f.at(args["out"], i * (4 * self.k)))
            for _ in f.when(inside.eq(0)):
                for at, value in enumerate((args["code_n"], row, f.const(I64, self.n))):
                    f.store(value, args["error"], 8 * at)
