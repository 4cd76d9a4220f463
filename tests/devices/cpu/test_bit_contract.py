"""No kernel leaves its arithmetic to LLVM: no fast-math flag, no loose intrinsic, no call into the C library.

`running.Kernels` asks `breaches` of every kernel that any test compiles; the ones here are asked on every
instruction set, also on those that this machine lacks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from devices.cpu import running
from devices.cpu.bit_contract import breaches
from devices.cpu.running import HOST_ISAS, Kernels, written
from ostinato.devices.cpu.compiler import assembly
from ostinato.devices.cpu.emit.builder import Function, Module, Value
from ostinato.devices.cpu.emit.types import F32V
from ostinato.devices.cpu.isa import ISAS, Isa, baseline
from ostinato.devices.cpu.kernels.activation import Activation
from ostinato.devices.cpu.kernels.argmax import ArgMaxRows
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.kernels.product import Product
from ostinato.devices.cpu.kernels.rope import RopeRows
from ostinato.devices.cpu.kernels.rows import BRAIN, INT8, PrepareRows, RowSpec
from ostinato.devices.cpu.kernels.slab_write import SlabWrite
from ostinato.devices.cpu.slabs import SlabGeometry
from ostinato.devices.cpu.weights import FORMS
from ostinato.ir import encoding as enc
from sabotage import goes_red

EXAMPLES: list[Kernel] = [
    *(
        PrepareRows(RowSpec(k, norm, 1e-5, rounding), k)
        for k in (40, 576)
        for norm in (None, "rms", "layer")
        for rounding in (None, INT8, BRAIN)
    ),
    PrepareRows(RowSpec(64, rounding=INT8), 64, dequantized=True),
    Activation("gelu_tanh", 40, 40),
    Activation("swiglu", 64, 64, 64),
    RopeRows(3, 24, 20, 72, 10),
    ArgMaxRows(5000),
    PrepareRows(RowSpec(256, rounding=INT8, sums=True), 256),
    SlabWrite(SlabGeometry(2, 33, 41, enc.Q8_0, "k"), 82),
    SlabWrite(SlabGeometry(2, 33, 41, enc.Q8_0, "v"), 82),
    *(Product(form, 256, 48, activation="silu") for form in FORMS),
]
PLAIN = [Product(form, 256, 48) for form in FORMS]
"""The same code, the activation left out."""
FLAGS = ["fast", "nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc", "nnan ninf"]
INTRINSICS = [
    "@llvm.fmuladd.v16f32(",
    "@llvm.vector.reduce.fadd.v16f32(",
    "@llvm.vector.reduce.fmax.v16f32(",
    "@llvm.exp.v16f32(",
    "@llvm.exp2.f32(",
    "@llvm.tanh.f32(",
]


def called_outside(text: str) -> set[str]:
    """The functions that assembly calls and doesn't define. Code may lie anywhere, so it loads addresses."""
    jumps = "callq?|jmpq?|movabsq|bl?"
    called = re.findall(rf"^\s+(?:{jumps})\s+\$?([A-Za-z_]\w*)\b", text, re.MULTILINE)
    return {name for name in called if f"\n{name}:" not in text}


@pytest.mark.parametrize("isa", [*ISAS.values(), baseline("arm64")], ids=lambda isa: f"{isa.name}-{isa.arch}")
def test_kernels_keep_the_contract_on_every_set(isa: Isa) -> None:
    assert breaches(written(isa, [*EXAMPLES, *PLAIN])) == []
    if isa.arch or isa in HOST_ISAS:
        assert called_outside(assembly(written(isa, EXAMPLES), isa)) == set()


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("op", ["fadd", "fmul", "fdiv", "fcmp", "call"])
def test_each_flag_is_seen(op: str, flags: str) -> None:
    line = f"  %v1 = {op} {flags} <16 x float> %a, %b"
    assert breaches(f"define void @f() {{\n{line}\n}}") == [line]


@pytest.mark.parametrize("intrinsic", INTRINSICS)
def test_each_loose_intrinsic_is_seen(intrinsic: str) -> None:
    assert breaches(f"%v1 = call <16 x float> {intrinsic}<16 x float> %a)")


def test_what_is_sound_is_not_taken_for_a_breach() -> None:
    sound = [
        "%v1 = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %c)",
        "%v1 = call i32 @llvm.vector.reduce.umin.v16i32(<16 x i32> %a)",
        "%fast = fadd <16 x float> %contract, %nsz",
        "%v2 = call <16 x float> @llvm.sqrt.v16f32(<16 x float> %a)",
        "%v3 = call i1 @llvm.expect.i1(i1 %a, i1 0)",
    ]
    assert breaches("\n".join(sound)) == []


@dataclass(frozen=True)
class Loose(Kernel):
    """Its sum may go with a product into one rounding."""

    @property
    def params(self) -> tuple[str, ...]:
        return ("x",)

    def body(self, f: Function, args: dict[str, Value]) -> None:
        x = f.load(F32V, args["x"])
        f.store(f.op(F32V, f"fadd contract {F32V} {x.name}, {x.name}"), args["x"])


def test_every_kernel_that_a_test_compiles_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        with pytest.raises(AssertionError, match="contract"):
            Kernels(HOST_ISAS[0], [Loose()])

    goes_red(monkeypatch, running, "breaches", lambda ir: [], refused)


@pytest.mark.parametrize("name", ["generic", "avx2", "neon_dotprod"])
def test_calls_into_the_library_are_seen(name: str) -> None:
    module = Module(ISAS[name])
    f = module.function("exponential", "ptr x")
    f.store(f.intrinsic("exp", f.load(F32V, f["x"])), f["x"])
    f.ret()
    assert called_outside(assembly(module.text(), ISAS[name])) == {"expf"}
