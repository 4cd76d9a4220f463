"""Byte products against integers, in every instruction set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from devices.cpu.running import HOST_ISAS, Kernels, aligned
from ostinato.devices.cpu.compiler import assembly
from ostinato.devices.cpu.emit.builder import Function, Module, Value
from ostinato.devices.cpu.emit.types import I8, I16, I32V
from ostinato.devices.cpu.isa import ISAS, Isa
from ostinato.devices.cpu.kernels.dot import dot2, dot4, dot_block
from ostinato.devices.cpu.kernels.kernel import Kernel


@dataclass(frozen=True)
class Dot4(Kernel):
    limit: int

    @property
    def params(self) -> tuple[str, ...]:
        return ("start", "unsigned", "signed", "out")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        isa = f.module.isa
        for i, _ in f.range(f["low"], f["high"]):
            start = f.load(I32V, args["start"], i * 64)
            unsigned, signed = (f.load(I8.x(64), args[name], i * 64) for name in ("unsigned", "signed"))
            f.store(dot4(f, isa, start, unsigned, signed, self.limit), args["out"], i * 64)


@dataclass(frozen=True)
class DotBlock(Kernel):
    """Eight times 64 unsigned bytes with one row of 32 signed ones."""

    limit: int

    @property
    def params(self) -> tuple[str, ...]:
        return ("start", "unsigned", "signed", "out")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        isa = f.module.isa
        for i, _ in f.range(f["low"], f["high"]):
            start = f.load(I32V, args["start"], i * 64)
            unsigned = [f.load(I8.x(64), args["unsigned"], i * 512 + 64 * j) for j in range(8)]
            row = f.at(args["signed"], i * 64)
            f.store(dot_block(f, isa, start, unsigned, row, 32, self.limit), args["out"], i * 64)


@dataclass(frozen=True)
class Dot2(Kernel):
    @property
    def params(self) -> tuple[str, ...]:
        return ("a", "b", "out")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        for i, _ in f.range(f["low"], f["high"]):
            a, b = (f.load(I16.x(32), args[name], i * 64) for name in ("a", "b"))
            f.store(dot2(f, f.module.isa, a, b), args["out"], i * 64)


LIMITS = (7, 15, 31, 63, 127, 255)


@pytest.fixture(scope="module", params=HOST_ISAS, ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    isa: Isa = request.param
    return Kernels(isa, [kind(limit) for kind in (Dot4, DotBlock) for limit in LIMITS] + [Dot2()])


def corners(limit: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Unsigned and signed bytes: the extremes against each other first, then random ones."""
    rng = np.random.default_rng(limit)
    unsigned, signed = aligned(shape, np.uint8), aligned(shape, np.int8)
    unsigned[:] = rng.integers(0, limit + 1, shape)
    signed[:] = rng.integers(-128, 128, shape)
    for i, (u, s) in enumerate([(limit, -128), (limit, 127), (0, -128), (1, -1), (limit // 2 + 1, -128)]):
        unsigned[i], signed[i] = u, s
    return unsigned, signed


@pytest.mark.parametrize("limit", LIMITS)
def test_four_products_to_a_lane_are_exact(kernels: Kernels, limit: int) -> None:
    unsigned, signed = corners(limit, (300, 64))
    start, out = aligned((300, 16), np.int32), aligned((300, 16), np.int32)
    start[:] = np.random.default_rng(1).integers(-(2**24), 2**24, start.shape)
    kernels.run(Dot4(limit), [start, unsigned, signed, out], 0, 300)
    products = unsigned.astype(np.int32) * signed
    assert (out == start + products.reshape(300, 16, 4).sum(-1)).all()


@pytest.mark.parametrize("limit", LIMITS)
def test_a_block_is_exact(kernels: Kernels, limit: int) -> None:
    unsigned, signed = corners(limit, (300, 512))
    signed = np.ascontiguousarray(signed[:, :64])
    start, out = aligned((300, 16), np.int32), aligned((300, 16), np.int32)
    start[:] = np.random.default_rng(1).integers(-(2**24), 2**24, start.shape)
    kernels.run(DotBlock(limit), [start, unsigned, signed, out], 0, 300)
    weights = unsigned.reshape(300, 8, 16, 4).astype(np.int32)
    row = signed[:, 32:].reshape(300, 8, 1, 4).astype(np.int32)
    assert (out == start + (weights * row).sum((1, 3))).all()


def test_two_products_to_a_lane_are_exact(kernels: Kernels) -> None:
    a, b = aligned((300, 32), np.int16), aligned((300, 32), np.int16)
    for seed, values in enumerate((a, b)):
        values[:] = np.random.default_rng(seed).integers(-(2**15), 2**15, values.shape)
        values[seed, :] = 2**15 - 1
        values[2:4, seed::2] = -(2**15) + 1
    out = aligned((300, 16), np.int32)
    kernels.run(Dot2(), [a, b, out], 0, 300)
    assert (out == (a.astype(np.int64) * b).reshape(300, 16, 2).sum(-1)).all()


@pytest.mark.parametrize(
    ("name", "instruction", "never"),
    [
        ("avx512bf16", r"vpdpbusd", "vpmaddubsw"),
        ("avx512vnni", r"vpdpbusd", "vpmaddubsw"),
        ("avxvnni", "{vex}\tvpdpbusd", "zmm"),
        ("avx2", "vpmaddubsw", "vpdpbusd"),
        ("neon_i8mm", "usdot\t", "\tsdot\t"),
        ("neon_dotprod", "\tsdot\t", "usdot\t"),
    ],
)
def test_each_set_uses_its_own_instruction(name: str, instruction: str, never: str) -> None:
    module = Module(ISAS[name])
    for limit in LIMITS:
        Dot4(limit).emit(module)
    text = assembly(module.text(), ISAS[name])
    assert instruction in text
    assert never not in text
