"""Instruction sets: which one is chosen, what can be forced, and what LLVM makes of each."""

from __future__ import annotations

import mmap
import platform
import sys
from collections.abc import Callable

import irs
import pytest

from ostinato.devices.cpu import arm, compiler, isa
from ostinato.devices.cpu.isa import ISAS, Isa, baseline, select
from ostinato.errors import InstructionSetMissing, InvalidSetting

x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 assembly")

X86 = [one.name for one in ISAS.values() if one.arch == "x86_64"]
ARM = [ISAS["neon_i8mm"], ISAS["neon_dotprod"], baseline("arm64")]
HASWELL = ISAS["avx2"].requires
SETS = [
    (ISAS["avx512bf16"].requires | {"avxvnni", "gfni"}, "avx512bf16"),
    (ISAS["avx512vnni"].requires | {"avxvnni", "gfni"}, "avx512vnni"),
    (ISAS["avx512vnni"].requires - {"avx512vnni"}, "avx2"),
    (HASWELL | {"avxvnni"}, "avxvnni"),
    (HASWELL, "avx2"),
    (HASWELL - {"fma"}, "generic"),
    (frozenset({"dotprod", "i8mm", "bf16"}), "neon_i8mm"),
    (frozenset({"dotprod"}), "neon_dotprod"),
    (frozenset({"i8mm"}), "generic"),
    (frozenset(), "generic"),
]


@pytest.fixture(autouse=True)
def _nothing_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OSTINATO_CPU", raising=False)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Callable[[frozenset[str]], None]:
    """Give this machine another CPU."""

    def has(features: frozenset[str]) -> None:
        monkeypatch.setattr(isa, "host_features", lambda: features)

    return has


@pytest.mark.parametrize(("features", "name"), SETS)
def test_the_best_set_that_the_host_has(host, features: frozenset[str], name: str) -> None:
    host(features)
    assert select(None) is ISAS[name]


def test_this_host_has_a_set_and_every_worse_one_can_be_forced() -> None:
    best = select(None)
    assert best.requires <= isa.host_features()
    assert select("generic") is ISAS["generic"]


def test_the_environment_forces_a_set(host, monkeypatch: pytest.MonkeyPatch) -> None:
    host(ISAS["avx512vnni"].requires)
    monkeypatch.setenv("OSTINATO_CPU", " AVX2 ")
    assert select(None) is ISAS["avx2"]
    assert select("generic") is ISAS["generic"]
    monkeypatch.setenv("OSTINATO_CPU", "")
    assert select(None) is ISAS["avx512vnni"]


def test_an_unknown_set_lists_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_CPU", "avx9")
    with pytest.raises(InvalidSetting) as caught:
        select(None)
    assert caught.value.field == "OSTINATO_CPU"
    assert all(name in str(caught.value) for name in ("'avx9'", *ISAS))


def test_a_set_that_the_host_lacks_names_what_is_missing(host) -> None:
    host(HASWELL)
    with pytest.raises(InstructionSetMissing) as caught:
        select("avx512vnni")
    assert caught.value.missing == ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl", "avx512vnni")
    assert "avx512bw" in str(caught.value)
    assert "Unset OSTINATO_CPU, or choose one of avx2, generic." in caught.value.remedy


@x86
@pytest.mark.parametrize(
    ("name", "register"),
    [("avx512bf16", "zmm"), ("avx512vnni", "zmm"), ("avxvnni", "ymm"), ("avx2", "ymm"), ("generic", "xmm")],
)
def test_each_set_uses_its_registers_and_no_wider(name: str, register: str) -> None:
    text = compiler.assembly(irs.MULTIPLY_ADD, ISAS[name])
    assert [width for width in ("xmm", "ymm", "zmm") if width in text] == [register]


@x86
def test_avx512_copies_by_whole_registers() -> None:
    """What LLVM widens by itself goes by the preferred width, not by the types that the IR names."""
    assert "zmm" in compiler.assembly(irs.COPY, ISAS["avx512vnni"])


@x86
@pytest.mark.parametrize("name", X86)
def test_a_product_and_a_sum_are_not_fused(name: str) -> None:
    text = compiler.assembly(irs.MULTIPLY_ADD, ISAS[name])
    assert "mulps" in text
    assert "addps" in text
    assert "fmadd" not in text


@x86
@pytest.mark.parametrize("name", ["avx512vnni", "generic"])
def test_code_depends_on_the_set_and_not_on_the_host(name: str) -> None:
    """The shift would become a Galois-field instruction on a CPU that has them; the sets don't name those."""
    assert "gf2p8" not in compiler.assembly(irs.NIBBLES, ISAS[name])


@pytest.mark.parametrize("isa", ARM, ids=lambda isa: isa.name)
def test_arm_code_can_be_looked_at_on_every_machine(isa: Isa) -> None:
    text = compiler.assembly(irs.MULTIPLY_ADD, isa)
    assert "fmul\tv0.4s" in text
    assert "fadd\tv0.4s" in text
    assert "fmla" not in text


@pytest.mark.parametrize(
    ("words", "features"),
    [
        ({16: 0, 26: 0}, set()),
        ({16: 1 << 20, 26: 0}, {"dotprod"}),
        ({16: 1 << 13, 26: 1 << 20}, set()),
        ({16: 0xFFFFFFFF, 26: 1 << 13}, {"dotprod", "i8mm"}),
    ],
)
def test_what_linux_tells_of_an_arm_cpu(
    monkeypatch: pytest.MonkeyPatch, words: dict[int, int], features: set[str]
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(arm, "auxiliary", words.__getitem__)
    assert arm.features() == features
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert arm.features() == set()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="getauxval is Linux's")
def test_the_auxiliary_vector_is_asked() -> None:
    assert arm.auxiliary(6) == mmap.PAGESIZE  # AT_PAGESZ
