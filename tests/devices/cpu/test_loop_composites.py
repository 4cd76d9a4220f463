"""Composites by their decomposition, loop kernel after loop kernel, against the reference device."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod

import numpy as np
import pytest

from devices.cpu.loopcases import ROWS, Env, Given, extents, items, places, run_kernel
from devices.cpu.running import HOST_ISAS, Kernels
from ostinato.devices.cpu.kernels.loopnest import loop_kernel
from ostinato.devices.cpu.kernels.loops.base import LoopKernel
from ostinato.devices.cpu.views import View, contiguous, moved
from ostinato.devices.reference.kernels import KERNELS
from ostinato.ir import ConstRole, DType, Graph, SymEnv, Tensor
from ostinato.ir.op import Composite, Op
from ostinato.ir.ops.nn import Embedding, GeluTanh, LayerNorm, RmsNorm, Rope, Silu, Softmax, SwiGlu
from ostinato.ir.ops.product import Linear
from ostinato.ir.shape import Shape


@dataclass
class Chain:
    """An op's decomposition as kernels over numbered buffers, operands first; moves are views of a buffer."""

    op: Op
    operands: tuple[Given, ...]
    buffers: list[Given] = field(default_factory=list)
    steps: list[tuple[LoopKernel, tuple[int, ...], int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        graph = Graph()
        inputs = [graph.const("x", ConstRole.DATA, one.view.shape, one.dtype) for one in self.operands]
        self.buffers = list(self.operands)
        places = {tensor.id: (at, self.operands[at].view) for at, tensor in enumerate(inputs)}
        self.result = self._apply(self.op, inputs, places)

    def _apply(self, op: Op, inputs: list[Tensor], known: dict[int, tuple[int, View]]) -> tuple[int, View]:
        if isinstance(op, Composite):
            scratch = Graph()
            inner = [scratch.const("x", ConstRole.DATA, x.shape, x.dtype) for x in inputs]
            values = {own.id: known[x.id] for own, x in zip(inner, inputs, strict=True)}
            result = op.decompose(*inner)
            for node in list(scratch)[len(inner) :]:
                values[node.id] = self._apply(node.op, [scratch.tensor(i) for i in node.inputs], values)
            return values[result.id]
        operands = [known[x.id] for x in inputs]
        view = moved(op, operands[0][1]) if operands else None
        if view is not None:
            return operands[0][0], view
        graph = Graph()
        same = [graph.const("x", ConstRole.DATA, x.shape, x.dtype) for x in inputs]
        node = graph.apply(op, *same).node
        return self._step(op, operands, node.shape, node.dtype)

    def _step(self, op: Op, operands: list[tuple[int, View]], shape: Shape, dtype: DType) -> tuple[int, View]:
        target = contiguous(shape, dtype)
        kernel = loop_kernel(op, [view for _, view in operands], target)
        assert kernel is not None, op
        self.buffers.append(Given(shape, dtype))
        self.steps.append((kernel, tuple(at for at, _ in operands), len(self.buffers) - 1))
        return len(self.buffers) - 1, target

    def run(self, kernels: Kernels, env: Env, arrays: list[np.ndarray]) -> np.ndarray:
        held = dict(enumerate(arrays))
        for kernel, reads, at in self.steps:
            parts = [(low, low + 1) for low in range(items(kernel, env))]
            buffers = [held[i] for i in reads][: len(kernel.inputs)]
            held[at] = run_kernel(kernels, kernel, env, buffers, self.buffers[at], parts).reshape(-1)
        at, view = self.result
        return held[at][places(view, env)]


def on_the_reference(op: Op, env: Env, arrays: list[np.ndarray]) -> np.ndarray:
    """`op` by the reference device's functions."""
    if not isinstance(op, Composite):
        return KERNELS[type(op)](op, SymEnv(env), *arrays)
    graph = Graph()
    dtypes = {dtype.numpy: dtype for dtype in DType}
    inputs = [graph.const("x", ConstRole.DATA, x.shape, dtypes[x.dtype]) for x in arrays]
    result = op.decompose(*inputs)
    values = dict(enumerate(arrays))
    for node in list(graph)[len(inputs) :]:
        values[node.id] = on_the_reference(node.op, env, [values[i] for i in node.inputs])
    return values[result.id]


I64 = DType.I64
CHAINS = {
    "RmsNorm": Chain(RmsNorm(1e-5), (Given((ROWS, 40)), Given((40,)))),
    "RmsNorm of heads": Chain(RmsNorm(1e-5), (Given((ROWS, 3, 8)), Given((8,)))),
    "LayerNorm": Chain(LayerNorm(1e-5), (Given((ROWS, 24)), Given((24,)), Given((24,)))),
    "Rope": Chain(Rope(), (Given((ROWS, 3, 16)), Given((ROWS, 8)), Given((ROWS, 8)))),
    "Rope of a part": Chain(Rope(), (Given((ROWS, 3, 24)), Given((ROWS, 4)), Given((ROWS, 4)))),
    "Softmax": Chain(Softmax(), (Given((ROWS, 37)),)),
    "Silu": Chain(Silu(), (Given((ROWS, 40)),)),
    "GeluTanh": Chain(GeluTanh(), (Given((ROWS, 40)),)),
    "SwiGlu": Chain(SwiGlu(), (Given((ROWS, 40)), Given((ROWS, 40)))),
    "Linear": Chain(Linear(), (Given((ROWS, 40)), Given((24, 40)))),
    "Linear with a bias": Chain(Linear(), (Given((ROWS, 40)), Given((24, 40)), Given((24,)))),
    "Embedding": Chain(Embedding(), (Given((ROWS,), I64), Given((9, 40)))),
}


@pytest.fixture(scope="module", params=HOST_ISAS, ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param, [step[0] for chain in CHAINS.values() for step in chain.steps])


def operands(chain: Chain, env: Env) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [
        rng.integers(0, 9, prod(extents(one.shape, env)))
        if one.dtype is I64
        else rng.standard_normal(prod(extents(one.shape, env))).astype(np.float32)
        for one in chain.operands
    ]


@pytest.mark.parametrize("rows", [0, 1, 5, 200])
@pytest.mark.parametrize("name", CHAINS)
def test_composites(kernels: Kernels, name: str, rows: int) -> None:
    chain, env = CHAINS[name], {ROWS: rows}
    arrays = operands(chain, env)
    result = chain.run(kernels, env, arrays)
    shaped = [x.reshape(extents(one.shape, env)) for x, one in zip(arrays, chain.operands, strict=True)]
    expected = on_the_reference(chain.op, env, shaped)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=2e-6, atol=4e-6)


@pytest.mark.parametrize("name", CHAINS)
def test_a_row_has_its_bits_alone_and_among_others(kernels: Kernels, name: str) -> None:
    chain, env = CHAINS[name], {ROWS: 200}
    arrays = operands(chain, env)
    together = chain.run(kernels, env, arrays)
    for row in (0, 63, 199):
        alone = [
            x.reshape(extents(one.shape, env))[row].reshape(-1) if ROWS in one.shape else x
            for x, one in zip(arrays, chain.operands, strict=True)
        ]
        assert chain.run(kernels, {ROWS: 1}, alone).tobytes() == together[row].tobytes()


def test_lanes_at_minus_infinity_weigh_nothing(kernels: Kernels) -> None:
    x = np.random.default_rng(1).standard_normal((2, 37)).astype(np.float32)
    x[0, 5:] = -np.inf
    weights = CHAINS["Softmax"].run(kernels, {ROWS: 2}, [x.reshape(-1)])
    assert (weights[0, 5:] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)


def test_floats_carry_no_fast_math_flag(kernels: Kernels) -> None:
    flags = "fast|nnan|ninf|nsz|arcp|contract|afn|reassoc"
    assert "= fadd <16 x float>" in kernels.ir
    assert not re.search(rf"= (f\w+|call|select|phi) ({flags})\b", kernels.ir)
