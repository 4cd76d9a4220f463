"""Products of unsigned and signed bytes, four to a lane, in the instructions that each set has for them.

All of them are exact in integers, so every set gives the same sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I8, I16, I32
from ostinato.devices.cpu.isa import Isa


def dot4(f: Function, isa: Isa, acc: Value, unsigned: Value, signed: Value, limit: int) -> Value:
    """`acc[i] + sum over j < 4 of unsigned[4i + j] * signed[4i + j]`, for 16 lanes i.

    Args:
        acc: 16 i32.
        unsigned: 64 bytes, each at most `limit`, which is at most 255.
        signed: 64 bytes.
    """
    if isa.name == "avx512vnni":
        return f.call("llvm.x86.avx512.vpdpbusd.512", acc.type, acc, unsigned, signed)
    if isa.name == "avxvnni":
        halves = zip(f.halves(acc), f.halves(unsigned), f.halves(signed), strict=True)
        return f.concat(*(f.call("llvm.x86.avx512.vpdpbusd.256", I32.x(8), *half) for half in halves))
    if isa.name == "avx2":
        # Sums of pairs saturate at 16 bits. 127 * 128 * 2 still fits; the top bit goes by itself.
        for part in [unsigned] if limit < 128 else [unsigned & 127, unsigned & -128]:
            acc = acc + _avx2_widen(f, _avx2_pairs(f, part, signed))
        return acc
    products = unsigned.cast("zext", I32) * signed.cast("sext", I32)  # i32 x 64
    pairs = f.shuffle(products, range(0, 64, 2)) + f.shuffle(products, range(1, 64, 2))
    return acc + (f.shuffle(pairs, range(0, 32, 2)) + f.shuffle(pairs, range(1, 32, 2)))


def dot_block(
    f: Function, isa: Isa, start: Value, weights: Sequence[Value], row: Value, offset: int, limit: int
) -> Value:
    """`start` plus the products of 16 weight rows' blocks with one activation row's: 16 i32.

    Args:
        weights: For each four elements of the block, those of all 16 rows: 64 bytes, at most `limit`.
        row: The activations' int8; the block begins at `offset`.
    """
    together = ((1 << 15) - 1) // (2 * 128 * limit) if isa.name in _PAIRS else 0
    pairs: list[Value] = []  # so many fit in 16 bits together, and are widened at once
    for j, unsigned in enumerate(weights):
        signed = f.broadcast(f.load(I32, row, offset + 4 * j)).cast("bitcast", I8.x(64))
        if not together:
            start = dot4(f, isa, start, unsigned, signed, limit)
            continue
        pairs.append(_PAIRS[isa.name](f, unsigned, signed))
        if len(pairs) == together or j + 1 == len(weights):
            start = start + _WIDEN[isa.name](f, reduce(add, pairs))
            pairs = []
    return start


def dot2(f: Function, isa: Isa, a: Value, b: Value) -> Value:
    """`a[2i] * b[2i] + a[2i + 1] * b[2i + 1]` of 32 i16, for 16 lanes i; the sums fit in i32."""
    if isa.name == "avx512vnni":
        return f.call("llvm.x86.avx512.pmaddw.d.512", I32.x(16), a, b)
    if isa.name in ("avxvnni", "avx2"):
        halves = zip(f.halves(a), f.halves(b), strict=True)
        return f.concat(*(f.call("llvm.x86.avx2.pmadd.wd", I32.x(8), *half) for half in halves))
    left, right = (value.cast("bitcast", I32.x(16)) for value in (a, b))
    return ((left << 16).ashr(16)) * ((right << 16).ashr(16)) + left.ashr(16) * right.ashr(16)


def _avx2_pairs(f: Function, unsigned: Value, signed: Value) -> Value:
    """Products of neighbours added: 32 i16."""
    halves = zip(f.halves(unsigned), f.halves(signed), strict=True)
    return f.concat(*(f.call("llvm.x86.avx2.pmadd.ub.sw", I16.x(16), *half) for half in halves))


def _avx2_widen(f: Function, pairs: Value) -> Value:
    """Neighbours of 32 i16 added: 16 i32."""
    one = f.const(I16.x(16), 1)
    return f.concat(*(f.call("llvm.x86.avx2.pmadd.wd", I32.x(8), half, one) for half in f.halves(pairs)))


def _plain_pairs(f: Function, unsigned: Value, signed: Value) -> Value:
    words, factors = (value.cast("bitcast", I16.x(32)) for value in (unsigned, signed))
    return (words & 255) * ((factors << 8).ashr(8)) + (words >> 8) * factors.ashr(8)


def _plain_widen(f: Function, pairs: Value) -> Value:
    both = pairs.cast("bitcast", I32.x(16))
    return (both << 16).ashr(16) + both.ashr(16)


_PAIRS = {"avx2": _avx2_pairs, "generic": _plain_pairs}
_WIDEN = {"avx2": _avx2_widen, "generic": _plain_widen}
