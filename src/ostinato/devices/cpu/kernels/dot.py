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
    if isa.has("avx512vnni"):
        return f.call("llvm.x86.avx512.vpdpbusd.512", acc.type, acc, unsigned, signed)
    if isa.name == "avxvnni":
        halves = zip(f.halves(acc), f.halves(unsigned), f.halves(signed), strict=True)
        return f.concat(*(f.call("llvm.x86.avx512.vpdpbusd.256", I32.x(8), *half) for half in halves))
    if isa.name in _NEON:
        parts = zip(f.split(acc, 4), f.split(unsigned, 4), f.split(signed, 4), strict=True)
        return f.join([_neon(f, isa, a, u, s, limit) for a, u, s in parts])
    if isa.name == "avx2":
        # Sums of pairs saturate at 16 bits. 127 * 128 * 2 still fits; the top bit goes by itself.
        for part in [unsigned] if limit < 128 else [unsigned & 127, unsigned & -128]:
            acc = acc + _avx2_widen(f, _avx2_pairs(f, part, signed))
        return acc
    products = unsigned.cast("zext", I32) * signed.cast("sext", I32)  # i32 x 64
    pairs = f.shuffle(products, range(0, 64, 2)) + f.shuffle(products, range(1, 64, 2))
    return acc + (f.shuffle(pairs, range(0, 32, 2)) + f.shuffle(pairs, range(1, 32, 2)))


def taken_off(isa: Isa, limit: int, over: int) -> int:
    """How much of the `over` that bytes have too much `dot_block` had better take off them by itself.

    128 or nothing: the set whose instruction takes signed bytes alone has to flip the top bit anyway.
    """
    return over if isa.name == "neon_dotprod" and limit > 127 and over == 128 else 0


def dot_block(
    f: Function,
    isa: Isa,
    start: Value,
    weights: Sequence[Value],
    row: Value,
    offset: int,
    limit: int,
    off: int = 0,
) -> Value:
    """`start` plus the products of 16 weight rows' blocks with one activation row's: 16 i32.

    Args:
        weights: For each four elements of the block, those of all 16 rows: 64 bytes, at most `limit`.
        row: The activations' int8; the block begins at `offset`.
        off: Is first subtracted from every byte: what `taken_off` gave.
    """
    if isa.name in _NEON:
        return _neon_block(f, isa, start, weights, row, offset, limit, off)
    assert not off
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
    if isa.has("avx512vnni"):
        return f.call("llvm.x86.avx512.pmaddw.d.512", I32.x(16), a, b)
    if isa.name in ("avxvnni", "avx2"):
        halves = zip(f.halves(a), f.halves(b), strict=True)
        return f.concat(*(f.call("llvm.x86.avx2.pmadd.wd", I32.x(8), *half) for half in halves))
    if isa.name in _NEON:
        products = [left * right for left, right in zip(_widened(f, a), _widened(f, b), strict=True)]
        pairs = zip(products[::2], products[1::2], strict=True)
        return f.join([f.call("llvm.aarch64.neon.addp.v4i32", I32.x(4), *pair) for pair in pairs])
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


def _neon(f: Function, isa: Isa, acc: Value, unsigned: Value, signed: Value, limit: int) -> Value:
    """`dot4` of 4 lanes."""
    if isa.name == "neon_i8mm":
        return _instruction(f, "usdot", acc, unsigned, signed)
    if limit < 128:
        return _instruction(f, "sdot", acc, unsigned, signed)
    for _ in range(2):  # 128 times the signed bytes, and then the rest of the unsigned ones
        acc = _instruction(f, "sdot", acc, signed, f.const(signed.type, 64))
    return _instruction(f, "sdot", acc, unsigned ^ -128, signed)


def _neon_block(
    f: Function,
    isa: Isa,
    start: Value,
    weights: Sequence[Value],
    row: Value,
    offset: int,
    limit: int,
    off: int,
) -> Value:
    """`dot_block`: sixteen activations to a load, since the instructions take four of them from any lane."""
    sums = f.split(start, 4)
    for j, unsigned in enumerate(weights):
        if j % 4 == 0:
            loaded = f.load(I32.x(4), row, offset + 4 * j)
        signed = f.shuffle(loaded, [j % 4] * 4).cast("bitcast", I8.x(16))
        if off:
            parts = f.split(unsigned ^ -128, 4)
            sums = [_instruction(f, "sdot", acc, part, signed) for acc, part in zip(sums, parts, strict=True)]
        else:
            parts = f.split(unsigned, 4)
            sums = [_neon(f, isa, acc, part, signed, limit) for acc, part in zip(sums, parts, strict=True)]
    return f.join(sums)


def _instruction(f: Function, name: str, acc: Value, a: Value, b: Value) -> Value:
    return f.call(f"llvm.aarch64.neon.{name}.v4i32.v16i8", acc.type, acc, a, b)


def _widened(f: Function, value: Value) -> list[Value]:
    """i16 as i32, four to a vector."""
    return [part.cast("sext", I32) for part in f.split(value, value.type.lanes // 4)]


_NEON = {"neon_dotprod", "neon_i8mm"}
_PAIRS = {"avx2": _avx2_pairs, "generic": _plain_pairs}
_WIDEN = {"avx2": _avx2_widen, "generic": _plain_widen}
