"""Values by four-bit index: a table of sixteen bytes in a register."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I8


def lookup(f: Function, table: Sequence[int], index: Value) -> Value:
    """`table[index]` for each byte of `index`, all of them less than 16; sixteen values that fit in a byte,
    signed or not."""
    entries = [(entry + 128) % 256 - 128 for entry in table]
    assert len(entries) == 16
    isa = f.module.isa
    if isa.has("avx512bw") and index.type.lanes == 64:
        return f.call("llvm.x86.avx512.pshuf.b.512", index.type, f.vector(I8.x(64), entries * 4), index)
    if isa.has("avx2") and index.type.lanes == 64:
        half = f.vector(I8.x(32), entries * 2)
        return f.concat(*(f.call("llvm.x86.avx2.pshuf.b", half.type, half, each) for each in f.halves(index)))
    if isa.arch == "aarch64" and index.type.lanes % 16 == 0:
        whole, name = f.vector(I8.x(16), entries), "llvm.aarch64.neon.tbl1.v16i8"
        parts = f.split(index, index.type.lanes // 16)
        return f.join([f.call(name, whole.type, whole, part) for part in parts])
    # Much code, so it stands in the module once.
    name = f"lookup_{hashlib.sha256(repr((entries, index.type)).encode()).hexdigest()[:12]}"
    if name not in f.module:
        g = f.module.function(name, f"{index.type} index", index.type, exported=False)
        g.ret(_chosen(g, entries, g["index"]))
    return f.call(name, index.type, index)


def _chosen(f: Function, entries: Sequence[int], index: Value) -> Value:
    """Bit by bit: which of each two neighbours, which of each two that are left, …"""
    values = [f.const(index.type, entry) for entry in entries]
    for bit in range(4):
        odd = (index & (1 << bit)).ne(0)
        values = [odd.select(b, a) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]
