"""Bits of quants: taken out of vectors in products, and rearranged in packing and its inverse.

A word is an i32 with four elements of a row, a byte each. The words of a block go 64 bytes apart into a unit,
one row's beside another's: vector i of a unit's quants has word i of 16 rows. With nibbles two words share
one, in ggml's order: elements 0 … 15 of a block in the low halves, 16 … 31 in the high ones. With fields of
fewer bits consecutive words do, from the lowest bits up.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32, I8, I32

_VECTOR = I8.x(64)


def load_nibbles(f: Function, w: Value, offset: int) -> list[Value]:
    """The nibbles of a block at `offset`: 8 vectors of four elements of 16 rows."""
    packed = [f.load(_VECTOR, w, offset + 64 * i) for i in range(4)]
    return [each & 15 for each in packed] + [each >> 4 for each in packed]


def load_fields(f: Function, w: Value, offset: int, bits: int, to: int = 0) -> list[Value]:
    """The fields of `bits` bits of a block at `offset`, each moved up `to` bits: 8 vectors."""
    found = []
    for at in range(0, 8 * bits, 8):
        packed = f.load(_VECTOR, w, offset + 8 * at)
        for i in range(0, 8, bits):
            moved = packed << (to - i) if to > i else packed >> (i - to)
            found.append(moved & (((1 << bits) - 1) << to))
    return found


def nibble_words(f: Function, source: Value, at: int) -> tuple[list[Value], list[Value]]:
    """32 bytes whose low nibbles are one block and whose high ones are another, as the words of each."""
    first, second = ([f.load(I32, source, at + 16 * h + 4 * i, align=1) for i in range(4)] for h in range(2))
    low, high = _bytes(0x0F), _bytes(0xF0)
    return (
        [(a & low) | ((b & low) << 4) for a, b in zip(first, second, strict=True)],
        [((a >> 4) & low) | (b & high) for a, b in zip(first, second, strict=True)],
    )


def field_words(f: Function, source: Value, at: int, bits: int) -> list[list[Value]]:
    """32 bytes whose fields of `bits` bits are a block each, from the lowest up, as the words of each."""
    count = 8 // bits
    words = [f.load(I32, source, at + 4 * i, align=1) for i in range(8)]
    parts = [_transposed(words[first : first + count], bits) for first in range(0, 8, count)]
    return [[part[block] for part in parts] for block in range(count)]


def bit_word(f: Function, bits: Value) -> Value:
    """32 bits (an i32), one an element, as a word of one-bit fields."""
    spread = [(((bits >> (4 * i)) & 15) * 0x00204081) & _bytes(1) for i in range(8)]  # bit j to byte j
    word = spread[0]
    for i, each in enumerate(spread[1:], 1):
        word = word | (each << i)
    return word


def nibbles(f: Function, words: Sequence[Value]) -> Value:
    """The inverse: 4 words to 32 values in one vector."""
    packed = as_bytes(f, words)
    return f.concat(packed & 15, packed >> 4)


def fields(f: Function, words: Sequence[Value], bits: int) -> Value:
    """The inverse: the words of a block's fields to 32 values in one vector."""
    mask = (1 << bits) - 1
    parts = [(as_bytes(f, [word]) >> i) & mask for word in words for i in range(0, 8, bits)]
    while len(parts) > 1:
        parts = [f.concat(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def bytes_less(word: Value, amount: int) -> Value:
    """Each of the four bytes less `amount`, both below 128."""
    return ((word ^ _bytes(0x80)) - _bytes(amount)) ^ _bytes(0x80)  # the top bits keep them apart


def as_bytes(f: Function, words: Sequence[Value]) -> Value:
    """i32 scalars as one vector of their bytes."""
    vector = f.zero(I32.x(len(words)))
    for i, word in enumerate(words):
        vector = f.insert(vector, word, i)
    return vector.cast("bitcast", I8.x(4 * len(words)))


def wide(f: Function, signed: Value) -> list[Value]:
    """32 int8 as two vectors of f32."""
    return [half.cast("sext", I32).cast("sitofp", F32) for half in f.halves(signed)]


def _transposed(words: Sequence[Value], bits: int) -> list[Value]:
    """In each of the four bytes, field t of word i to field i of word t."""
    found, span = list(words), len(words) // 2
    while span:
        kept = sum(((1 << bits) - 1) << (i * bits) for i in range(len(words)) if not i & span)
        for i in range(len(words)):
            if not i & span:
                changed = ((found[i] >> (span * bits)) ^ found[i + span]) & _bytes(kept)
                found[i + span] = found[i + span] ^ changed
                found[i] = found[i] ^ (changed << (span * bits))
        span //= 2
    return found


def _bytes(value: int) -> int:
    """A byte four times, as an i32."""
    return int.from_bytes(bytes([value] * 4), "little", signed=True)
