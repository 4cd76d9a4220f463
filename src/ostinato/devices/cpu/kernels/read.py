"""Reading memory as fast as it goes: the yardstick that decode is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I64
from ostinato.devices.cpu.kernels.kernel import Kernel

BLOCK = 4096
"""Bytes of one work item."""
STEP = 256
"""Bytes of each stream that one turn of the loop reads."""


@dataclass(frozen=True)
class ReadBytes(Kernel):
    """Read the items' bytes once and leave their sum, as 64-bit numbers, in `out`, a cache line a thread.

    A thread's range is read as `streams` runs side by side, each in order, 64 bytes at a time; what doesn't
    divide by `streams` is not read. `ahead`: how many bytes before they are due lines are asked for, 0 for
    never.
    """

    streams: int
    ahead: int = 0

    @property
    def params(self) -> tuple[str, ...]:
        return ("buffer", "out")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        vector = I64.x(8)
        share = (f["high"] - f["low"]) // self.streams * BLOCK
        starts = [f.at(args["buffer"], f["low"] * BLOCK + share * s) for s in range(self.streams)]
        lines = range(0, STEP, 64)
        zeros = {f"sum{s}_{line}": f.zero(vector) for s in range(self.streams) for line in lines}
        for at, sums in f.range(0, share, STEP, **zeros):
            for s, start in enumerate(starts):
                here = f.at(start, at)
                for line in lines:
                    if self.ahead:
                        f.prefetch(here, self.ahead + line)
                    name = f"sum{s}_{line}"
                    sums[name] = sums[name] + f.load(vector, here, line, align=64)
        total = f.zero(vector)
        for name in zeros:
            total = total + sums[name]
        f.store(f.sum(total), args["out"], f["thread"] * 64)
