"""The instruction sets that kernels are written for, and which of them this machine has.

A set names its LLVM CPU and features outright, so code for a set depends on the set and not on the host that
compiled it. The levels are those of the x86-64 psABI (https://gitlab.com/x86-psABIs/x86-64-ABI); every
aarch64 CPU has NEON, fma and conversions of f16.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ostinato.devices.cpu import arm, llvm
from ostinato.errors.cpu import InstructionSetMissing
from ostinato.errors.generate import InvalidSetting
from ostinato.host import env


@dataclass(frozen=True)
class Isa:
    """An instruction set: `cpu` and `features` are LLVM's, `requires` are the host features it needs.

    `fma`: `llvm.fma` is one instruction, not a call into the C library. `arch`: the architecture as triples
    have it; empty for the one that this process runs on.
    """

    name: str
    cpu: str
    features: str
    fma: bool
    requires: frozenset[str]
    arch: str = "x86_64"

    def has(self, feature: str) -> bool:
        """Whether code for this set may use what LLVM calls so."""
        return feature in self.requires


_V2 = frozenset({"cx16", "sahf", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2"})
_V3 = _V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


def baseline(machine: str) -> Isa:
    """What every machine of an architecture has; `machine` is its name in any system."""
    if machine in {"x86_64", "amd64"}:
        return Isa("generic", "x86-64", "", fma=False, requires=frozenset())
    if machine in {"aarch64", "arm64"}:
        return Isa("generic", "generic", "", fma=True, requires=frozenset(), arch="aarch64")
    return Isa("generic", "", "", fma=False, requires=frozenset(), arch="")


ISAS: Mapping[str, Isa] = MappingProxyType(
    {
        isa.name: isa
        for isa in (
            Isa("avx512bf16", "x86-64-v4", "+avx512vnni,+avx512bf16,-prefer-256-bit", fma=True,
                requires=_V4 | {"avx512vnni", "avx512bf16"}),
            # x86-64-v4 alone prefers 256-bit vectors, for CPUs that clocked down under wider ones.
            Isa("avx512vnni", "x86-64-v4", "+avx512vnni,-prefer-256-bit", fma=True,
                requires=_V4 | {"avx512vnni"}),
            Isa("avxvnni", "x86-64-v3", "+avxvnni", fma=True, requires=_V3 | {"avxvnni"}),
            Isa("avx2", "x86-64-v3", "", fma=True, requires=_V3),
            Isa("neon_i8mm", "generic", "+dotprod,+i8mm", fma=True, requires=frozenset({"dotprod", "i8mm"}),
                arch="aarch64"),
            Isa("neon_dotprod", "generic", "+dotprod", fma=True, requires=frozenset({"dotprod"}),
                arch="aarch64"),
            baseline(platform.machine().lower()),
        )
    }
)  # fmt: skip
"""Every set by name, those of an architecture best first; the last runs everywhere."""


@functools.cache
def host_features() -> frozenset[str]:
    """LLVM's names of what this CPU and its system can do. Raises NativeCompilerMissing."""
    found = llvm.binding().get_host_cpu_features()
    return frozenset(name for name, there in found.items() if there) | arm.features()


def require(isa: Isa) -> None:
    """The guard of every load: code that this CPU lacks the instructions for would end the process.

    Raises InstructionSetMissing.
    """
    missing = isa.requires - host_features()
    if missing:
        raise InstructionSetMissing(isa.name, tuple(sorted(missing)), tuple(usable()))


def select(forced: str | None = None) -> Isa:
    """The best set that this machine has, or the one that `forced`, else `OSTINATO_CPU`, names.

    Raises InvalidSetting for a name that is none, InstructionSetMissing for a set that the host lacks,
    NativeCompilerMissing without llvmlite.
    """
    name = forced if forced is not None else env.instruction_set()
    if name is None:
        return ISAS[usable()[0]]
    isa = ISAS.get(name)
    if isa is None:
        raise InvalidSetting("OSTINATO_CPU", f"one of {', '.join(ISAS)}", repr(name))
    require(isa)
    return isa


def usable() -> list[str]:
    """The names of the sets that this machine has, best first. Raises NativeCompilerMissing."""
    return [isa.name for isa in ISAS.values() if isa.requires <= host_features()]
