"""Blocks of 32 floats to int8 with a scale, once or twice: the rule of
`ir.ops.quantize.QuantizeRows(block=32)`.

Four blocks go side by side: each reduction then ends in one vector, with a block's result in each quarter,
and all that follows is done once for the four.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32V, I8, I16, I32V, LANES
from ostinato.ir.ops.quantize import FURTHER, LEAST

BLOCK = 32
META_BYTES = 16


@dataclass(frozen=True)
class Blocks:
    """Up to four quantised blocks. `q`: two int32 vectors for each; `d`: a block's scale in each quarter."""

    f: Function
    q: Sequence[Value]
    d: Value

    def store(self, q: Value, meta: Value) -> None:
        """The int8 values one after another at `q`, the records (see `rows`) at `meta`."""
        f = self.f
        for i, value in enumerate(self.q):
            f.store(value.cast("trunc", I8), q, LANES * i)
        count = len(self.q) // 2
        sums = _quarters(f, self.q, _added)
        floats = f.shuffle(self.d, _interleaved(0, 17), self.d * sums.cast("sitofp", F32V))
        integers = f.shuffle((0 - sums) << 3, _interleaved(0, 17), f.zero(I32V))
        records = f.shuffle(floats.cast("bitcast", I32V), _interleaved(0, 1, 18, 19), integers)
        f.store_part(records, meta, 0, 4 * count)

    def store_sums(self, out: Value) -> None:
        """The sums of each 16 elements, i16 one after another."""
        f, q = self.f, [*self.q, *[self.f.zero(I32V)] * (8 - len(self.q))]
        for half in (8, 4, 2):
            q = [_folded(f, q[i], q[i + 1], half, _added) for i in range(0, len(q), 2)]
        even, odd = (f.shuffle(q[0], range(at, LANES, 2)) for at in (0, 1))
        f.store_part((even + odd).cast("trunc", I16), out, 0, len(self.q))

    def values(self) -> list[Value]:
        """d·q."""
        # By way of int8: where d is infinite or NaN, so is then every product with it, as in a quantised row.
        small = [value.cast("trunc", I8).cast("sext", I32V.scalar) for value in self.q]
        return [value.cast("sitofp", F32V) * self._of_block(self.d, i) for i, value in enumerate(small)]

    def with_rest(self, x: Sequence[Value], limit: Value) -> list[Value]:
        """d·q, and what is left of `x` rounded further in blocks with a square of d from `limit` on."""
        rounded, larger = self.values(), (self.d * self.d).ge(limit)
        rest = further_blocks(self.f, [a - b for a, b in zip(x, rounded, strict=True)], self.d)
        both = [a + b for a, b in zip(rounded, rest.values(), strict=True)]
        return [
            self._of_block(larger, i).select(total, value)
            for i, (total, value) in enumerate(zip(both, rounded, strict=True))
        ]

    def _of_block(self, quarters: Value, i: int) -> Value:
        """What is in a quarter for a block, in every lane, for vector `i`."""
        return self.f.shuffle(quarters, [4 * (i // 2)] * LANES)


def quantize_blocks(f: Function, values: Sequence[Value]) -> Blocks:
    """Quantise up to four blocks, two vectors each: d = amax · (1/127), q = x · (127/amax) to the nearest,
    half to even, and 0 where 127/amax isn't finite. A block with a NaN has scale NaN, one with an infinity
    has an infinite one.
    """
    # The bits of a float without its sign order like the float, with NaN above infinity.
    sizes = [value.cast("bitcast", I32V) & 0x7FFFFFFF for value in values]
    amax = _quarters(f, sizes, lambda a, b: a.max(b)).cast("bitcast", F32V)
    inverse = 127.0 / amax
    inverse = inverse.lt(float("inf")).select(inverse, 0.0)
    return Blocks(f, _integers(f, values, inverse), amax * (1.0 / 127.0))


def further_blocks(f: Function, rest: Sequence[Value], d: Value) -> Blocks:
    """What blocks with the scales `d` have left, rounded again: d2 = d · (1/254), q2 = rest · (254/d)."""
    return Blocks(f, _integers(f, rest, 254.0 / d), d * (1.0 / 254.0))


def limit_of(f: Function, squares: Value, blocks: int) -> Value:
    """From which square of its scale on a block of a row is rounded further, f32.

    Args:
        squares: Sums of the row's squared scales, those of blocks 4 i + j in quarter j.
        blocks: How many it has.
    """
    sums = [f.lane(squares, 4 * j) for j in range(4)]
    total = (sums[0] + sums[1]) + (sums[2] + sums[3])
    limit = (total * (FURTHER / blocks)).max(LEAST)
    return total.lt(float("inf")).select(limit, float("nan"))  # nothing is at least NaN


def _integers(f: Function, values: Sequence[Value], factor: Value) -> list[Value]:
    """Two vectors for each block, times its quarter of `factor`, to the nearest integers, half to even."""
    return [
        f.intrinsic(
            "lrint", value * f.shuffle(factor, [4 * (i // 2)] * LANES), returns=I32V, suffix="v16i32.v16f32"
        )
        for i, value in enumerate(values)
    ]


def _quarters(f: Function, values: Sequence[Value], join: Callable[[Value, Value], Value]) -> Value:
    """Blocks of two vectors each reduced to one value, that of block b in all lanes of quarter b."""
    blocks = [join(values[i], values[i + 1]) for i in range(0, len(values), 2)]
    blocks += [f.zero(blocks[0].type)] * (4 - len(blocks))
    pairs = [_folded(f, blocks[i], blocks[i + 1], 8, join) for i in (0, 2)]
    result = _folded(f, pairs[0], pairs[1], 4, join)
    for distance in (2, 1):
        result = join(result, f.shuffle(result, [lane ^ distance for lane in range(LANES)]))
    return result


def _folded(f: Function, a: Value, b: Value, half: int, join: Callable[[Value, Value], Value]) -> Value:
    """The lower and the upper half of each group of 2·half lanes joined, those of `a` before those of `b`."""
    lanes = range(2 * LANES)
    lower = f.shuffle(a, [lane for lane in lanes if lane // half % 2 == 0], b)
    upper = f.shuffle(a, [lane for lane in lanes if lane // half % 2 == 1], b)
    return join(lower, upper)


def _added(a: Value, b: Value) -> Value:
    return a + b


def _interleaved(*firsts: int) -> list[int]:
    """These lanes, and again that many further on, until a vector is full."""
    step = len(firsts)
    return [first + turn for turn in range(0, LANES, step) for first in firsts]
