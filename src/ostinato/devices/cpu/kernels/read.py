"""Reading memory as fast as it goes: the yardstick that decode is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I64
from ostinato.devices.cpu.kernels.kernel import Kernel

BLOCK = 4096
"""Bytes of one work item."""


@dataclass(frozen=True)
class ReadBytes(Kernel):
    """Read the items' bytes once and leave their sum in `out`, one cell a thread.

    A thread's range is read as `streams` runs side by side, each in order, 64 bytes at a time.
    """

    streams: int

    @property
    def params(self) -> tuple[str, ...]:
        return ("buffer", "out")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        vector = I64.x(8)
        share = (f["high"] - f["low"]) // self.streams * BLOCK
        starts = [f.at(args["buffer"], f["low"] * BLOCK + share * s) for s in range(self.streams)]
        zeros = {f"sum{s}_{j}": f.zero(vector) for s in range(self.streams) for j in range(4)}
        for at, sums in f.range(0, share, 256, **zeros):
            for s, start in enumerate(starts):
                here = f.at(start, at)
                for j in range(4):
                    sums[f"sum{s}_{j}"] = sums[f"sum{s}_{j}"] + f.load(vector, here, 64 * j, align=64)
        total = f.zero(vector)
        for name in zeros:
            total = total + sums[name]
        f.store(f.sum(total), args["out"], f["thread"] * 64)
