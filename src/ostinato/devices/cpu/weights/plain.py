"""Floats, packed: for each k the elements of 16 rows, 32 bytes of F16 or BF16, 64 of F32. k needs no filling.

Activations stay f32. A row's product is two sums, of the even and of the odd k, each a chain of fma in order,
added at the end: two chains are enough to be faster than memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32, F32V, I16, I32, Type
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels.halves import widen, widen_brain
from ostinato.devices.cpu.weights.packed import GROUP, PackedForm, Sources
from ostinato.ir import encoding as e
from ostinato.ir.encoding import Encoding

_CHAINS = 2
_UNROLL = 4


@dataclass(frozen=True)
class FloatForm(PackedForm):
    """Base of the float forms."""

    quantize = None
    element: ClassVar[Type]
    """The integer type of an element's bits."""

    def group_bytes(self, k: int) -> int:
        return k * GROUP * self.element.nbytes

    @abstractmethod
    def floats(self, f: Function, bits: Value) -> Value:
        """Elements as f32."""

    def dot(self, f: Function, isa: Isa, k: int, w: Value, rows: Sequence[Value]) -> list[Value]:
        step = GROUP * self.element.nbytes

        def add(sums: list[list[Value]], at: Value | int, count: int) -> None:
            weights, floats = f.at(w, at * step), [f.at(row, at * 4) for row in rows]
            for i in range(count):
                weight = self.floats(f, f.load(self.element.x(GROUP), weights, i * step))
                for t, row in enumerate(floats):
                    x = f.broadcast(f.load(F32, row, 4 * i))
                    sums[t][i % _CHAINS] = f.fma(weight, x, sums[t][i % _CHAINS])

        chains = [(t, c) for t in range(len(rows)) for c in range(_CHAINS)]
        whole = k - k % _UNROLL
        sums = [[f.zero(F32V)] * _CHAINS for _ in rows]
        for i, s in f.range(0, whole, _UNROLL, **{f"{t}.{c}": sums[t][c] for t, c in chains}):
            inner = [[s[f"{t}.{c}"] for c in range(_CHAINS)] for t in range(len(rows))]
            add(inner, i, _UNROLL)
            for t, c in chains:
                s[f"{t}.{c}"] = inner[t][c]
        sums = [[s[f"{t}.{c}"] for c in range(_CHAINS)] for t in range(len(rows))]
        add(sums, whole, k % _UNROLL)
        return [even + odd for even, odd in sums]

    def pack(self, f: Function, k: int, sources: Sources, out: Value) -> None:
        nbytes = self.element.nbytes
        rows = [sources.row(lane) for lane in range(GROUP)]
        vector = self.element.x(GROUP)

        def write(at: Value | int, count: int) -> None:
            columns = [f.load_part(vector, f.at(row, there * nbytes * at), 0, count) for row, there in rows]
            for i, column in enumerate(transposed(f, columns)[:count]):
                f.store(column, f.at(out, at * (GROUP * nbytes)), i * GROUP * nbytes)

        whole = k - k % GROUP
        for i, _ in f.range(0, whole, GROUP):
            write(i, GROUP)
        if k % GROUP:
            write(whole, k % GROUP)

    def unpack(self, f: Function, k: int, w: Value, lane: Value, out: Value) -> None:
        nbytes = self.element.nbytes
        column = f.at(w, lane * nbytes)
        for i, _ in f.range(0, k):
            f.store(self.floats(f, f.load(self.element, column, i * (GROUP * nbytes))), out, i * 4)


class F16Form(FloatForm):
    name = "f16.r16"
    stored = Encoding("F16:r16", 16, 32)
    element = I16

    def floats(self, f: Function, bits: Value) -> Value:
        return widen(f, bits)


class BF16Form(FloatForm):
    name = "bf16.r16"
    stored = Encoding("BF16:r16", 16, 32)
    element = I16

    def floats(self, f: Function, bits: Value) -> Value:
        return widen_brain(bits)


class F32Form(FloatForm):
    """Also for weights that a codec has decoded, at several times their size."""

    name = "f32.r16"
    stored = Encoding("F32:r16", 16, 64)
    element = I32

    @property
    def reads(self) -> Encoding:
        return e.F32

    def floats(self, f: Function, bits: Value) -> Value:
        return bits.cast("bitcast", F32.x(bits.type.lanes))


def transposed(f: Function, rows: Sequence[Value]) -> list[Value]:
    """16 vectors of 16, rows to columns: four rounds of interleaving each with its partner eight further."""
    half = len(rows) // 2
    low = [lane for i in range(half) for lane in (i, i + 2 * half)]
    values = list(rows)
    for _ in range(4):
        pairs = [(values[i], values[i + half]) for i in range(half)]
        values = [f.shuffle(a, [lane + at for lane in low], b) for a, b in pairs for at in (0, half)]
    return values
