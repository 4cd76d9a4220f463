"""Packing: file rows to the bytes that products read."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I8
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.weights import GROUP, SOURCES
from ostinato.devices.cpu.weights.packed import ZEROS, Sources


@dataclass(frozen=True)
class Pack(Kernel):
    """An item is a group of 16 packed rows of `k` elements.

    `rows` holds the address of each packed row's bytes, encoded as the name `source` says, or 0 for a row of
    zeros: joined, permuted and interleaved weights are tables of addresses. `out` is the packed weight.
    """

    source: str
    k: int

    @property
    def params(self) -> tuple[str, ...]:
        return ("rows", "out")

    @property
    def scratch_bytes(self) -> int:
        return ZEROS

    def body(self, f: Function, args: dict[str, Value]) -> None:
        form = SOURCES[self.source]
        f.store(f.zero(I8.x(ZEROS)), f["scratch"])
        for group, _ in f.range(f["low"], f["high"]):
            sources = Sources(f, f.at(args["rows"], group * (8 * GROUP)), f["scratch"])
            form.pack(f, self.k, sources, f.at(args["out"], group * form.group_bytes(self.k)))
