"""Attention kernels against the reference device running the op's definition: writes, rotation, attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attending import CASES, Step, World, all_kernels, attend_many, stored

from devices.cpu.running import HOST_ISAS, Kernels
from ostinato.device.storage import Storage
from ostinato.ir import ConstRole, Graph, SymEnv
from ostinato.ir import encoding as enc
from ostinato.ir.ops.attention import Attention
from ostinato.ir.ops.nn import Rope
from ostinato.ir.ops.slab import WriteSlice
from ostinato.runtime.context import Bindings, InferenceContext


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return all_kernels(HOST_ISAS[0])


def reference(context: InferenceContext, world: World, start: int, rows: int) -> np.ndarray:
    """The graph that a model's block builds, on slabs that hold the rows before `start`."""
    case, graph, device = world.case, Graph(), context.devices.device(context.location)
    data: dict[Any, np.ndarray] = {}
    slabs: dict[Any, Storage] = {}

    def const(value: np.ndarray) -> Any:
        tensor = graph.const("x", ConstRole.DATA, value.shape)
        data[tensor.id] = value
        return tensor

    def slab(values: np.ndarray) -> Any:
        held = values.copy()
        held[:, :, start:] = np.nan
        tensor = graph.const("slab", ConstRole.SLAB, values.shape, enc.element(case.kv), case.kv)
        slabs[tensor.id] = device.allocate_slab(values.shape, case.kv, "k")
        device.write(held, slabs[tensor.id])
        return tensor

    at = slice(start, start + rows)
    q, k, v = (const(np.ascontiguousarray(x[at])) for x in (world.q, world.k_rows, world.v_rows))
    if case.rot:
        tables = const(world.cos[at]), const(world.sin[at])
        q, k = q.apply(Rope(), *tables), k.apply(Rope(), *tables)
    written = [slab(values).apply(WriteSlice(start, rows), x) for values, x in ((world.k, k), (world.v, v))]
    operands = [*written, *([const(world.mask[at])] if case.masked else [])]
    result = q.apply(Attention(start, start + rows, case.scale, case.window, case.masked), *operands)
    (value,) = context.realize(graph, [result.id], Bindings(slabs=slabs, data=data), SymEnv({}))
    return value


@pytest.mark.parametrize("name", CASES)
def test_as_the_reference_device(context: InferenceContext, kernels: Kernels, name: str) -> None:
    world = World(CASES[name])
    bound = 3e-6 * np.abs(world.v.astype(np.float64)).max()
    for start, rows in ((0, 1), (130, 1), (0, 40), (100, 33)):
        expected = reference(context, world, start, rows)
        got = attend_many(kernels, world, start, rows, world.slabs(start + rows))
        np.testing.assert_allclose(got, expected, rtol=0, atol=bound)
        if rows == 1:
            alone = Step(kernels, world, world.case.one, start, *world.slabs(start)).run()
            np.testing.assert_allclose(alone, expected[0], rtol=0, atol=bound)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize("name", ["grouped", "window", "odd dims, masked", "q8_0"])
def test_what_is_not_a_number_goes_where_the_reference_has_it(
    context: InferenceContext, kernels: Kernels, name: str, which: str, value: float
) -> None:
    """K and V of one attended cell; the same elements are NaN or infinite, the others are close."""
    world = World(CASES[name])
    rows = {"k": world.k_rows, "v": world.v_rows}[which]
    slab = {"k": world.k, "v": world.v}[which]
    rows[135, :, -1] = value
    with np.errstate(invalid="ignore"):
        slab[0, :, 135] = stored(world.case.kv, (world.rotated(rows) if which == "k" else rows)[135])
        expected = reference(context, world, 130, 9)
    got = attend_many(kernels, world, 130, 9, world.slabs(139))
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)


def test_a_row_that_attends_nothing(context: InferenceContext, kernels: Kernels) -> None:
    world = World(CASES["odd dims, masked"])
    world.mask[42] = -np.inf
    with np.errstate(invalid="ignore"):
        expected = reference(context, world, 40, 5)
    assert np.isnan(expected[2]).all()
    got = attend_many(kernels, world, 40, 5, world.slabs(45))
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)
