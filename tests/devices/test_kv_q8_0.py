"""Q8_0 keys and values: the rule, by a loop written independently, and slabs that keep them on devices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from devices.running import raw
from ostinato.device.contract import slab_encoding, view_of
from ostinato.device.kv_q8_0 import blocks, dequantize, quantize
from ostinato.devices.cpu.device import CpuDevice
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import BindingMismatch, NoKernel
from ostinato.ir import ConstRole, DType, Graph, SymEnv
from ostinato.ir import encoding as enc
from ostinato.ir.encoding import element
from ostinato.ir.ops.slab import ReadPrefix, WriteSlice
from ostinato.runtime.context import Bindings, InferenceContext
from ostinato.runtime.registry import Registry

SHAPE = (1, 2, 37, 41)
MAKERS: dict[str, Any] = {"reference": ReferenceDevice, "cpu": CpuDevice}
EACH = pytest.mark.parametrize("device", [make() for make in MAKERS.values()], ids=MAKERS)


def by_hand(row: np.ndarray) -> tuple[list[int], list[np.float16]]:
    """One row, element by element."""
    q, scales = [], []
    for first in range(0, len(row), 32):
        block = [np.float32(x) for x in row[first : first + 32]]
        amax = math.nan if any(math.isnan(x) for x in block) else max(abs(x) for x in block)
        with np.errstate(all="ignore"):
            d = np.float16(np.float32(amax) / np.float32(127))
        scales.append(d)
        inverse = np.float32(1) / np.float32(d) if 0 < d < math.inf else None
        for x in block:
            n = 0 if inverse is None else round(float(x * inverse))  # half to even
            q.append(max(-127, min(127, n)))
        q += [0] * (-len(block) % 32)
    return q, scales


def rows() -> np.ndarray:
    """Of all magnitudes, with what isn't a number, scales that lose bits, and halves between integers."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((60, 41)).astype(np.float32)
    x *= np.exp2(rng.integers(-40, 30, (60, 1))).astype(np.float32)
    x[0], x[1, 3], x[2, 40], x[3, :5] = 0, math.nan, -math.inf, -0.0
    x[4] = np.float32(127 * 2.0**-24) * rng.uniform(0.4, 1.6, 41)
    x[5] = rng.integers(-254, 255, 41) / 2
    x[5, [0, 40]] = 127
    return x


def test_the_rule() -> None:
    x = rows()
    q, d = quantize(x)
    assert (q.shape, d.shape, blocks(41)) == ((60, 64), (60, 2), 2)
    for row, mine, scales in zip(x, q, d, strict=True):
        expected = by_hand(row)
        assert mine.tolist() == expected[0]
        np.testing.assert_array_equal(scales, expected[1])


def test_what_is_stored_is_near_and_stays_when_it_is_rounded_again() -> None:
    x = np.random.default_rng(6).standard_normal((500, 64)).astype(np.float32)
    q, d = quantize(x)
    read = dequantize(q, d, 64)
    bound = np.repeat(d.astype(np.float32), 32, -1) * 0.501
    assert (np.abs(read - x) <= bound).all()
    again = quantize(read)
    np.testing.assert_array_equal(again[0], q)
    np.testing.assert_array_equal(again[1], d)


def test_a_position_depends_on_itself_alone() -> None:
    x = rows()
    whole = quantize(x)
    for at in range(len(x)):
        q, d = quantize(x[at])
        np.testing.assert_array_equal(q, whole[0][at])
        np.testing.assert_array_equal(d, whole[1][at])


@EACH
@pytest.mark.parametrize("role", ["k", "v"])
def test_a_slab_from_the_host(device: Any, role: str) -> None:
    slab, other = (device.allocate_slab(SHAPE, enc.Q8_0, role) for _ in range(2))
    assert slab.dtype is element(enc.Q8_0)
    assert slab.nbytes == device.traits.kv_layouts[enc.Q8_0].nbytes(SHAPE, role)
    assert device.traits.kv_type(slab.encoding) == enc.Q8_0
    assert not device.download(slab, SHAPE).any()
    values = np.random.default_rng(7).standard_normal(SHAPE).astype(np.float32)
    device.write(values, slab)
    read = device.download(slab, SHAPE)
    np.testing.assert_array_equal(read, dequantize(*quantize(values), SHAPE[-1]))
    device.copy(slab, other)
    np.testing.assert_array_equal(device.download(other, SHAPE), read)
    assert view_of(device, slab, SHAPE) is None


@EACH
def test_it_takes_little_more_than_half_the_memory(device: Any) -> None:
    shape = (1, 2, 320, 64)
    layouts = device.traits.kv_layouts
    for role in "kv":
        sizes = {kv: layouts[kv].nbytes(shape, role) for kv in (enc.F16, enc.Q8_0)}
        assert sizes[enc.Q8_0] / sizes[enc.F16] == 17 / 32


def test_the_reference_keeps_values_and_scales_apart() -> None:
    slab = ReferenceDevice().allocate_slab(SHAPE, enc.Q8_0, "k")
    assert slab.bundling == ("values", "scales")
    assert [raw(part.data).dtype for part in slab.parts] == [np.int8, np.float16]


def step(context: InferenceContext, slab: Any, read: Any = None) -> np.ndarray:
    """Two rows written at position 3 of a reference slab, then `read`."""
    graph = Graph()
    tensor = graph.const("slab", ConstRole.SLAB, SHAPE, element(enc.Q8_0), enc.Q8_0)
    new = np.random.default_rng(8).standard_normal((2, 2, 41)).astype(np.float32)
    row = graph.const("rows", ConstRole.DATA, new.shape)
    written = tensor.apply(WriteSlice(3, 2), row)
    result = written.apply(ReadPrefix(5)) if read is None else read(written)
    bindings = Bindings(slabs={tensor.id: slab}, data={row.id: new})
    (value,) = context.realize(graph, [result.id], bindings, SymEnv({}))
    return value


def test_ops_on_a_reference_slab(context: InferenceContext) -> None:
    device = context.devices.device(context.location)
    slab = device.allocate_slab(SHAPE, enc.Q8_0, "k")
    value = step(context, slab)
    new = np.random.default_rng(8).standard_normal((2, 2, 41)).astype(np.float32)
    np.testing.assert_array_equal(value[0, :, 3:], dequantize(*quantize(new), 41).transpose(1, 0, 2))
    assert not value[0, :, :3].any()
    np.testing.assert_array_equal(device.download(slab, SHAPE)[:, :, :5], value)


def test_a_slab_of_another_extent_or_type_is_refused(context: InferenceContext) -> None:
    device = context.devices.device(context.location)
    with pytest.raises(BindingMismatch, match="extent"):
        step(context, device.allocate_slab((1, 2, 36, 41), enc.Q8_0, "k"))
    with pytest.raises(BindingMismatch, match="encoding"):
        step(context, device.allocate_slab(SHAPE, enc.F32, "k"))


def test_what_knows_arrays_alone_is_refused_a_slab(context: InferenceContext) -> None:
    device = context.devices.device(context.location)
    slab = device.allocate_slab(SHAPE, enc.Q8_0, "k")
    with pytest.raises(NoKernel, match="Mul"):
        step(context, slab, lambda slab: slab * 2.0)
    assert not device.download(slab, SHAPE).any()


@pytest.mark.parametrize("kv", [enc.F16, enc.Q8_0], ids=str)
def test_the_cpu_reads_slabs_by_kernels_made_for_them_alone(kv: enc.Encoding) -> None:
    devices = Registry()
    devices.register(CpuDevice())
    context = InferenceContext("cpu", devices)
    graph, encoding = Graph(), slab_encoding(devices.device(context.location), kv, "k")
    slab = graph.const("slab", ConstRole.SLAB, SHAPE, element(kv), encoding)
    other = DType.F32 if kv is enc.F16 else DType.F16
    with pytest.raises(NoKernel, match=f"Cast.*{encoding}"):
        context.compile(context.plan(graph, [slab.cast(other).id], bounds={}))


@EACH
def test_a_type_without_a_layout_is_refused(device: Any) -> None:
    with pytest.raises(NoKernel, match="Q4_0"):
        device.allocate_slab(SHAPE, enc.Q4_0, "k")
