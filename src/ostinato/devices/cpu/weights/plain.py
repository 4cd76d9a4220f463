"""Floats, packed: for each k the elements of 16 rows, 32 bytes of F16, 64 of F32; BF16 two k at a time, 64
bytes. Only BF16 needs filling, to an even k.

A row's product is two sums, of the even and of the odd k, each a chain of fma in order, added at the end: two
chains are enough to be faster than memory. Activations stay f32, but where the set multiplies pairs of
bfloat16: there they are rounded to it, and the chains are of the even and of the odd pairs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import BF16, F32, F32V, I16, I32, I32V, Type
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels.halves import widen, widen_brain
from ostinato.devices.cpu.kernels.rows import BRAIN, brain_pairs
from ostinato.devices.cpu.weights.packed import GROUP, PackedForm, Sources, fetch
from ostinato.ir import encoding as e
from ostinato.ir.encoding import Encoding
from ostinato.ir.ops.quantize import Rounding

_CHAINS = 2
_UNROLL = 4

_Add = Callable[[Value | int, int, list[list[Value]]], None]


@dataclass(frozen=True)
class FloatForm(PackedForm):
    """Base of the float forms: elements by themselves."""

    element: ClassVar[Type]
    """The integer type of an element's bits."""

    def rounding(self, isa: Isa) -> Rounding | None:
        return None

    def group_bytes(self, k: int) -> int:
        return k * GROUP * self.element.nbytes

    @abstractmethod
    def floats(self, f: Function, bits: Value) -> Value:
        """Elements as f32."""

    def columns(self, f: Function, w: Value, count: int) -> list[Value]:
        """`count` k of all 16 rows from the address `w` on, as f32."""
        step = self.element.x(GROUP)
        return [self.floats(f, f.load(step, w, i * step.nbytes)) for i in range(count)]

    def dot(
        self, f: Function, isa: Isa, k: int, w: Value, rows: Sequence[Value], ahead: int = 0
    ) -> list[Value]:
        def add(at: Value | int, count: int, sums: list[list[Value]]) -> None:
            weights, floats = f.at(w, at * (GROUP * self.element.nbytes)), [f.at(row, at * 4) for row in rows]
            fetch(f, weights, count * GROUP * self.element.nbytes, ahead)
            for i, weight in enumerate(self.columns(f, weights, count)):
                for row, chains in zip(floats, sums, strict=True):
                    x = f.broadcast(f.load(F32, row, 4 * i))
                    chains[i % _CHAINS] = f.fma(weight, x, chains[i % _CHAINS])

        return _in_chains(f, len(rows), k, add)

    def pack(self, f: Function, k: int, sources: Sources, out: Value) -> None:
        _pack_columns(f, k, self.element, sources, out)

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


class BF16Form(FloatForm):
    """In pairs, the even k in the lower half of 32 bits: a shift and a mask take them apart, and instructions
    that multiply pairs want them so."""

    name = "bf16.k2.r16"
    stored = Encoding("BF16:k2.r16", 32, 64)
    element = I16

    def rounding(self, isa: Isa) -> Rounding | None:
        return BRAIN if isa.has("avx512bf16") else None

    def group_bytes(self, k: int) -> int:
        return brain_pairs(k) * _PAIR

    def floats(self, f: Function, bits: Value) -> Value:
        return widen_brain(bits)

    def columns(self, f: Function, w: Value, count: int) -> list[Value]:
        pairs = [f.load(I32V, w, i * _PAIR) for i in range(brain_pairs(count))]
        halves = [half for pair in pairs for half in (pair << 16, pair & -0x10000)]
        return [half.cast("bitcast", F32V) for half in halves[:count]]

    def dot(
        self, f: Function, isa: Isa, k: int, w: Value, rows: Sequence[Value], ahead: int = 0
    ) -> list[Value]:
        if self.rounding(isa) is None:
            return super().dot(f, isa, k, w, rows, ahead)
        pairs = BF16.x(2 * GROUP)

        def add(at: Value | int, count: int, sums: list[list[Value]]) -> None:
            weights, floats = f.at(w, at * _PAIR), [f.at(row, at * 4) for row in rows]
            fetch(f, weights, count * _PAIR, ahead)
            for i in range(count):
                weight = f.load(I32V, weights, i * _PAIR).cast("bitcast", pairs)
                for row, chains in zip(floats, sums, strict=True):
                    x = f.broadcast(f.load(I32, row, 4 * i)).cast("bitcast", pairs)
                    old = chains[i % _CHAINS]
                    chains[i % _CHAINS] = f.call("llvm.x86.avx512bf16.dpbf16ps.512", F32V, old, weight, x)

        return _in_chains(f, len(rows), brain_pairs(k), add)

    def pack(self, f: Function, k: int, sources: Sources, out: Value) -> None:
        """Pairs lie in the source's rows as they are to lie here."""
        _pack_columns(f, k // 2, I32, sources, out)
        if k % 2:
            rows = [sources.row(lane) for lane in range(GROUP)]
            for lane, (row, there) in enumerate(rows):
                last = f.load(I16, f.at(row, there * (2 * (k - 1)))).cast("zext", I32)
                f.store(last, out, k // 2 * _PAIR + 4 * lane)

    def unpack(self, f: Function, k: int, w: Value, lane: Value, out: Value) -> None:
        column = f.at(w, lane * 4)
        for i, _ in f.range(0, k):
            at = (i >> 1) * _PAIR + (i & 1) * 2
            f.store(self.floats(f, f.load(I16, column, at)), out, i * 4)


_PAIR = 4 * GROUP
"""Bytes of a pair of all rows."""


def _in_chains(f: Function, rows: int, count: int, add: _Add) -> list[Value]:
    """The sums of `rows` rows over `count` elements. `add(at, count, sums)` adds those from `at` on to the
    sums, `_CHAINS` for each row, that number i to sum i mod `_CHAINS`."""
    names = [[f"{t}.{c}" for c in range(_CHAINS)] for t in range(rows)]
    whole = count - count % _UNROLL
    for i, s in f.range(0, whole, _UNROLL, **{name: f.zero(F32V) for row in names for name in row}):
        sums = [[s[name] for name in row] for row in names]
        add(i, _UNROLL, sums)
        for row, chains in zip(names, sums, strict=True):
            for name, chain in zip(row, chains, strict=True):
                s[name] = chain
    sums = [[s[name] for name in row] for row in names]
    add(whole, count % _UNROLL, sums)
    return [even + odd for even, odd in sums]


def _pack_columns(f: Function, k: int, element: Type, sources: Sources, out: Value) -> None:
    """The first `k` elements of 16 rows, one after another for each k."""
    nbytes, vector = element.nbytes, element.x(GROUP)
    rows = [sources.row(lane) for lane in range(GROUP)]

    def write(at: Value | int, count: int) -> None:
        columns = [f.load_part(vector, f.at(row, there * nbytes * at), 0, count) for row, there in rows]
        for i, column in enumerate(transposed(f, columns)[:count]):
            f.store(column, f.at(out, at * (GROUP * nbytes)), i * GROUP * nbytes)

    whole = k - k % GROUP
    for i, _ in f.range(0, whole, GROUP):
        write(i, GROUP)
    if k % GROUP:
        write(whole, k % GROUP)


def transposed(f: Function, rows: Sequence[Value]) -> list[Value]:
    """16 vectors of 16, rows to columns: four rounds of interleaving each with its partner eight further."""
    half = len(rows) // 2
    low = [lane for i in range(half) for lane in (i, i + 2 * half)]
    values = list(rows)
    for _ in range(4):
        pairs = [(values[i], values[i + half]) for i in range(half)]
        values = [f.shuffle(a, [lane + at for lane in low], b) for a, b in pairs for at in (0, half)]
    return values
