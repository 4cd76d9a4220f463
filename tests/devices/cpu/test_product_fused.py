"""What products take in: norm and quantisation before, bias, activation, gate and residual after."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from devices.cpu.running import HOST_ISAS, Kernels, at_page_end
from devices.cpu.weighing import decoded, encoded, packed, quantised, rows_of
from ostinato.devices.cpu.compiler import assembly
from ostinato.devices.cpu.emit.builder import Module
from ostinato.devices.cpu.isa import ISAS, Isa
from ostinato.devices.cpu.kernels.pack import Pack
from ostinato.devices.cpu.kernels.product import Product
from ostinato.devices.cpu.kernels.rows import BRAIN, INT8, PrepareRows, RowSpec
from ostinato.devices.cpu.weights import FORMS
from ostinato.devices.reference.kernels import rounded_to_bf16

K, ROWS = 96, 7
SPEC = RowSpec(K, rounding=INT8)
RMS, LAYER = (RowSpec(K, norm, 1e-5, rounding=INT8) for norm in ("rms", "layer"))
FLOAT_RMS = RowSpec(K, "rms", 1e-5)
FEW = [
    Product("q4_1.r16", K, 40, SPEC, activation="silu", bias=True),
    Product("q4_1.r16", K, 80, SPEC, gated=True, bias=True, residual=True),
    Product("q4_0.r16", K, 32, LAYER, bias=True, residual=True),
    Product("f16.r16", K, 32, FLOAT_RMS, gated=True),
]
"""What every set is tested with; the best one with more, as compiling for the others takes longest."""
PRODUCTS = [
    *FEW,
    Product("q4_1.r16", K, 40, SPEC, residual=True),
    Product("q4_1.r16", K, 32, SPEC, activation="gelu_tanh", bias=True, residual=True),
    Product("q4_1.r16", K, 64, SPEC, gated=True),
    Product("q8_0.r16", K, 64, SPEC, activation="gelu_tanh", gated=True),
    Product("q4_0.r16", K, 32, RMS, bias=True, residual=True),
    Product("f32.r16", K, 33, None, activation="silu", bias=True),
]
BRAINS = [
    Product("bf16.k2.r16", K, 32, RowSpec(K, "rms", 1e-5, BRAIN), gated=True),
    Product("bf16.k2.r16", K, 33, RowSpec(K, rounding=BRAIN), bias=True, residual=True),
]
CASES = [(isa, one) for isa in HOST_ISAS for one in (PRODUCTS if isa is HOST_ISAS[0] else FEW)]
CASES += [(isa, one) for isa in HOST_ISAS for one in BRAINS if isa.has("avx512bf16")]


def many_of(one: Product) -> Product:
    return replace(one, prepare=None, many=True)


def prepare_of(one: Product) -> PrepareRows:
    return PrepareRows(one.prepare or RowSpec(one.k), x_stride=one.k)


def pack_of(one: Product) -> Pack:
    return Pack(FORMS[one.form].source.name, one.k)


@cache
def kernels_for(isa: Isa) -> Kernels:
    products = [one for each, one in CASES if each is isa]
    return Kernels(isa, [k for p in products for k in (p, many_of(p), prepare_of(p), pack_of(p))])


class Case:
    """A product's operands, and its results in float64."""

    def __init__(self, kernels: Kernels, one: Product) -> None:
        rng = np.random.default_rng(3)
        self.one = one
        self.x = rows_of(ROWS, one.k)
        self.norm = rng.standard_normal((2, one.k), np.float32)
        # Where the last 16 gate rows are not whole, the packed weight has rows of zeros among its own.
        order = np.arange(one.n)
        if one.gated:
            gate, up = (np.full(one.items * 16, -1) for _ in range(2))
            gate[: one.width], up[: one.width] = np.arange(one.n).reshape(2, -1)
            order = np.stack([gate.reshape(-1, 16), up.reshape(-1, 16)], 1).reshape(-1)
        raw = encoded(FORMS[one.form].source, one.n, one.k)
        self.weight = packed(kernels, pack_of(one), raw, order)
        self.w = decoded(FORMS[one.form].source, raw).astype(np.float64)
        bias = rng.standard_normal(one.n).astype(np.float32)
        self.bias = np.where(order >= 0, bias[order], 0).astype(np.float32)
        if one.gated:
            self.bias = self.bias[: len(self.bias) - (16 * one.items - one.width)]
        self.residual = rng.standard_normal((ROWS, one.width)).astype(np.float32)
        self.expected, self.bound = self._exact(bias.astype(np.float64))

    def _exact(self, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        one, x = self.one, self.x.astype(np.float64)
        spec = one.prepare
        if spec is not None and spec.norm is not None:
            centred = x - x.mean(1, keepdims=True) if spec.norm == "layer" else x
            x = centred / np.sqrt((centred**2).mean(1, keepdims=True) + spec.eps) * self.norm[0]
            x = x + self.norm[1] if spec.norm == "layer" else x
        if spec is not None and spec.rounding:
            rounded = quantised if spec.rounding == INT8 else rounded_to_bf16
            x = rounded(x.astype(np.float32)).astype(np.float64)
        y, bound = x @ self.w.T, np.abs(x) @ np.abs(self.w.T)
        if one.bias:
            y, bound = y + bias, bound + np.abs(bias)
        gate, up = (y[:, : one.width], y[:, one.width :]) if one.gated else (y, None)
        bounds = bound[:, : one.width]
        activation = one.activation or ("silu" if one.gated else None)
        if activation == "silu":
            gate = gate / (1 + np.exp(-np.maximum(gate, -700)))
        elif activation == "gelu_tanh":
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        if up is not None:
            bounds = bounds * np.abs(up) + np.abs(gate) * bound[:, one.width :]
            gate = gate * up
        return gate + (self.residual if one.residual else 0), 1.2 * bounds + np.abs(self.residual)

    def args(self, x: list[np.ndarray], residual: np.ndarray, out: np.ndarray) -> list[np.ndarray]:
        bias = [at_page_end(self.bias)] if self.one.bias else []
        return [*x, self.weight, *bias, *([residual] if self.one.residual else []), out]

    def norms(self) -> list[np.ndarray]:
        spec = self.one.prepare
        return [] if spec is None else list(self.norm[: len(spec.norm_params)])

    def alone(self, kernels: Kernels, *, in_place: bool) -> np.ndarray:
        results = []
        for x, residual in zip(self.x, self.residual, strict=True):
            added = at_page_end(residual)
            out = added if in_place else at_page_end(np.full(self.one.width, np.nan, np.float32))
            args = self.args([at_page_end(x), *self.norms()], added, out)
            kernels.run(self.one, args, 0, self.one.items)
            results.append(out)
        return np.stack(results)

    def together(self, kernels: Kernels, *, in_place: bool) -> np.ndarray:
        many = many_of(self.one)
        prepared = np.zeros((ROWS, many.row_bytes(kernels.isa)), np.uint8)
        kernels.run(prepare_of(self.one), [self.x, *self.norms(), prepared], 0, ROWS)
        added = at_page_end(self.residual)
        out = added if in_place else at_page_end(np.full(self.residual.shape, np.nan, np.float32))
        args = self.args([at_page_end(prepared)], added, out)
        kernels.run(many, [*args, np.array([ROWS])], 0, many.items)
        return out


def named(value: Isa | Product) -> str:
    if isinstance(value, Isa):
        return value.name
    fused = [value.prepare.norm if value.prepare else "", value.activation, value.gated and "gated"]
    fused += [value.bias and "bias", value.residual and "residual", str(value.n)]
    return "-".join(str(each) for each in (value.form, *fused) if each)


@pytest.mark.parametrize(("isa", "one"), CASES, ids=named)
def test_fused_products(isa: Isa, one: Product) -> None:
    kernels = kernels_for(isa)
    case = Case(kernels, one)
    found = case.alone(kernels, in_place=False)
    # A norm's last bit moves whole quantisation steps: with one, only the bits against PrepareRows are exact.
    steps = 2e-2 if one.prepare is not None and one.prepare.norm and one.prepare.rounding else 0
    assert (np.abs(found - case.expected) <= (2e-6 + steps) * case.bound).all()
    assert (found == case.together(kernels, in_place=False)).all()
    if one.residual:
        assert (found == case.alone(kernels, in_place=True)).all()
        assert (found == case.together(kernels, in_place=True)).all()


@pytest.mark.parametrize(("name", "there"), [("avx512bf16", True), ("avx512vnni", False)])
def test_pairs_of_bfloat16_are_multiplied_as_they_lie(name: str, there: bool) -> None:
    module = Module(ISAS[name])
    Product("bf16.k2.r16", 512, 64).emit(module)
    text = assembly(module.text(), module.isa)
    assert ("vdpbf16ps" in text) == there
    assert ("vfmadd" in text) != there


@pytest.mark.parametrize("form", ["q4_0.r16", "q4_k.r16", "bf16.k2.r16", "f16.r16"])
def test_tiles_ask_for_the_next_weights_and_one_row_does_not(form: str) -> None:
    asked = []
    for many in (False, True):
        module = Module(ISAS["avx512bf16"])
        Product(form, 512, 64, many=many).emit(module)
        asked.append(assembly(module.text(), module.isa).count("prefetcht1"))
    assert asked[0] == 0
    assert asked[1] > 0


@pytest.mark.parametrize("form", ["q4_1.r16", "q4_k.r16", "q6_k.r16"])
def test_the_one_row_loop_folds_its_broadcasts_into_the_products(form: str) -> None:
    module = Module(ISAS["avx512vnni"])
    Product(form, 512, 64).emit(module)
    lines = [line for line in assembly(module.text(), module.isa).splitlines() if "vpdpbusd" in line]
    assert len(lines) == 32, "two blocks, and what is left of each"
    assert all("{1to16}" in line for line in lines)


def test_a_set_with_256_bit_vectors_stays_within_them() -> None:
    module = Module(ISAS["avxvnni"])
    for form in ("q4_1.r16", "q8_0.r16", "iq4_nl.r16", "q5_k.r16", "q6_k.r16"):
        for many in (False, True):
            Product(form, 512, 64, many=many).emit(module)
    text = assembly(module.text(), module.isa)
    assert "{vex}\tvpdpbusd" in text
    assert "zmm" not in text
