"""Lookups by four-bit index, in every instruction set."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest

from devices.cpu.running import HOST_ISAS, Kernels, aligned
from ostinato.devices.cpu.compiler import assembly
from ostinato.devices.cpu.emit.builder import Function, Module, Value
from ostinato.devices.cpu.emit.types import I8, Type
from ostinato.devices.cpu.isa import ISAS, Isa
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.kernels.lookup import lookup

SIGNED = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
UNSIGNED = tuple(entry + 128 for entry in SIGNED)


@dataclass(frozen=True)
class Lookup(Kernel):
    """An item is a vector."""

    table: tuple[int, ...]
    lanes: int

    @property
    def params(self) -> tuple[str, ...]:
        return ("index", "out")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        for i, _ in f.range(f["low"], f["high"]):
            index = f.load(I8.x(self.lanes), args["index"], i * self.lanes)
            f.store(lookup(f, self.table, index), args["out"], i * self.lanes)


KERNELS = [Lookup(table, lanes) for table in (SIGNED, UNSIGNED) for lanes in (32, 64)]


@pytest.fixture(scope="module", params=HOST_ISAS, ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    isa: Isa = request.param
    return Kernels(isa, KERNELS)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel.table[0]}-{kernel.lanes}")
def test_every_index_in_every_lane(kernels: Kernels, kernel: Lookup) -> None:
    index, out = aligned((16, kernel.lanes), np.uint8), aligned((16, kernel.lanes), np.uint8)
    index[:] = (np.arange(16)[:, None] + np.arange(kernel.lanes)) % 16
    kernels.run(kernel, [index, out], 0, 16)
    assert (out == np.array(kernel.table).astype(np.uint8)[index]).all()


@pytest.mark.parametrize(("name", "register"), [("avx512vnni", "zmm"), ("avxvnni", "ymm"), ("avx2", "ymm")])
def test_the_sets_that_can_shuffle_bytes_do(name: str, register: str) -> None:
    module = Module(ISAS[name])
    Lookup(SIGNED, 64).emit(module)
    found = [line for line in assembly(module.text(), ISAS[name]).splitlines() if "vpshufb" in line]
    assert found
    assert all(register in line for line in found)


@pytest.mark.parametrize("name", ["neon_i8mm", "neon_dotprod"])
def test_arm_has_an_instruction_for_sixteen_bytes(name: str) -> None:
    module = Module(ISAS[name])
    Lookup(SIGNED, 64).emit(module)
    assert len(re.findall(r"^\ttbl\tv", assembly(module.text(), ISAS[name]), re.MULTILINE)) == 4


def test_a_type_is_what_its_text_says() -> None:
    for type in (I8, I8.x(64), Type("ptr")):
        assert Type.of(str(type)) == type
