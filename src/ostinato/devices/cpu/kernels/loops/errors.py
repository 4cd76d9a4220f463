"""What a kernel does about an index outside of its range."""

from __future__ import annotations

from ostinato.devices.cpu.emit.builder import Function, Value


def report(f: Function, args: dict[str, Value], fine: Value, index: Value, size: Value) -> None:
    """Write the record (code, index, size), all i64, unless the i1 `fine` holds."""
    for _ in f.when(fine ^ 1):
        for at, value in enumerate((args["code_n"], index, size)):
            f.store(value, args["error"], 8 * at)
