"""Rows into slabs: rounding as numpy rounds, rotation, counts, capacity, and nothing but the rows touched."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attending import stored

from devices.cpu.running import HOST_ISAS, Kernels, at_page_end
from ostinato.device.kv_q8_0 import quantize
from ostinato.devices.cpu.kernels import slab_write
from ostinato.devices.cpu.kernels.slab_write import SlabWrite
from ostinato.devices.cpu.slabs import SlabGeometry, slab_encoding, slab_kind
from ostinato.ir import encoding as enc
from sabotage import goes_red

GEOMETRIES = [
    SlabGeometry(3, 70, 64, enc.F16, "k"),
    SlabGeometry(3, 70, 64, enc.F16, "v"),
    SlabGeometry(2, 64, 21, enc.F32, "k"),
    SlabGeometry(2, 65, 21, enc.F32, "v"),
    SlabGeometry(1, 33, 1, enc.F16, "k"),
    SlabGeometry(1, 33, 1, enc.F16, "v"),
    SlabGeometry(3, 70, 64, enc.Q8_0, "k"),
    SlabGeometry(3, 70, 64, enc.Q8_0, "v"),
    SlabGeometry(2, 33, 41, enc.Q8_0, "k"),
    SlabGeometry(2, 33, 41, enc.Q8_0, "v"),
]
KERNELS = [
    *(SlabWrite(slab, slab.kv_heads * slab.dim) for slab in GEOMETRIES),
    SlabWrite(GEOMETRIES[0], 3 * 64 + 10, rot=64),
    SlabWrite(GEOMETRIES[2], 2 * 21 + 3, rot=10),
    SlabWrite(GEOMETRIES[8], 2 * 41 + 3, rot=10),
]
NAMES = [f"{k.slab.encoding} {k.slab.dim}{' rotated' * (k.rot > 0)}" for k in KERNELS]
EACH = pytest.mark.parametrize("kernel", KERNELS, ids=NAMES)


@pytest.fixture(scope="module", params=HOST_ISAS, ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param, KERNELS)


class Write:
    """A run of a kernel over a slab of NaN that ends where a page begins that nothing may touch."""

    def __init__(self, kernels: Kernels, kernel: SlabWrite, rows: int, start: int, count: int) -> None:
        rng = np.random.default_rng(rows)
        slab = kernel.slab
        self.kernels, self.kernel, self.rows = kernels, kernel, rows
        values = rng.standard_normal((rows, kernel.row_stride)).astype(np.float32)
        used = (rows - 1) * kernel.row_stride + slab.kv_heads * slab.dim
        x = at_page_end(values.reshape(-1)[:used])
        angles = rng.uniform(-3, 3, (rows, kernel.rot // 2)).astype(np.float32)
        self.cos, self.sin = at_page_end(np.cos(angles)), at_page_end(np.sin(angles))
        self.x = values[:, : slab.kv_heads * slab.dim].reshape(rows, slab.kv_heads, slab.dim)
        self.slab = at_page_end(np.full(slab.nbytes, 0xFF, np.uint8))
        self.error = np.zeros(3, np.int64)
        arrays = {"rows": x, "cos": self.cos, "sin": self.sin, "slab": self.slab, "error": self.error}
        arrays |= {"start": np.array([start]), "count": np.array([count]), "row_count": np.array([rows])}
        self.args = [arrays.get(name, 9) for name in kernel.params]

    def run(self) -> np.ndarray:
        """The slab afterwards: `[kv_heads, capacity, dim]`."""
        items = self.rows * self.kernel.slab.kv_heads
        for low, high in ((items // 2, items), (0, items // 2)):
            self.kernels.run(self.kernel, self.args, low, high)
        return self.kernel.slab.to_logical(self.slab)[0]

    def expected(self) -> np.ndarray:
        """`[kv_heads, rows, dim]` as stored; the rotation is `ir.ops.nn.Rope` in float32."""
        x, half = self.x, self.kernel.rot // 2
        if half:
            cos, sin = self.cos[:, np.newaxis], self.sin[:, np.newaxis]
            a, b = x[..., :half], x[..., half : 2 * half]
            x = np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)
        return stored(self.kernel.slab.kv, x.transpose(1, 0, 2))


@EACH
def test_rows_go_where_they_belong_and_nowhere_else(kernels: Kernels, kernel: SlabWrite) -> None:
    capacity = kernel.slab.capacity
    for rows, start, count in (
        (1, 0, 1),
        (1, capacity - 1, 1),
        (7, 29, 4),
        (3, 5, 0),
        (capacity, 0, capacity),
    ):
        write = Write(kernels, kernel, rows, start, min(count, capacity - start))
        got = write.run()
        end = start + min(count, capacity - start)
        np.testing.assert_array_equal(got[:, start:end], write.expected()[:, : end - start])
        assert np.isnan(np.delete(got, np.s_[start:end], axis=1)).all()
        assert not write.error.any()


@EACH
@pytest.mark.parametrize(
    ("start", "count", "bad"), [(-1, 2, -1), (0, -1, -2), (1 << 62, 1, 1 << 62), (1 << 63, 1, -1 << 63)]
)
def test_positions_outside_are_reported_and_nothing_is_written(
    kernels: Kernels, kernel: SlabWrite, start: int, count: int, bad: int
) -> None:
    refused(kernels, kernel, np.int64(np.uint64(start & (1 << 64) - 1)), count, bad)


@EACH
def test_not_one_row_of_a_write_that_does_not_fit(kernels: Kernels, kernel: SlabWrite) -> None:
    capacity = kernel.slab.capacity
    refused(kernels, kernel, capacity, 1, capacity)
    refused(kernels, kernel, capacity - 1, 2, capacity)
    refused(kernels, kernel, 0, capacity + 1, capacity)


@EACH
def test_not_one_row_where_there_are_fewer_than_are_to_be_written(
    kernels: Kernels, kernel: SlabWrite
) -> None:
    write = Write(kernels, kernel, 3, 0, 4)
    write.run()
    assert write.error.tolist() == [9, 3, 3]
    assert (write.slab == 0xFF).all()


def refused(kernels: Kernels, kernel: SlabWrite, start: int, count: int, bad: int) -> None:
    write = Write(kernels, kernel, 3, start, count)
    write.run()
    assert write.error.tolist() == [9, bad, kernel.slab.capacity]
    assert (write.slab == 0xFF).all()


def test_the_capacity_check_is_what_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    slab = SlabGeometry(1, 33, 4, enc.F32, "k")  # position 33 is there in memory, a block being 32

    def check() -> None:
        kernel = SlabWrite(slab, 4)
        refused(Kernels(HOST_ISAS[0], [kernel]), kernel, 32, 2, 33)

    goes_red(monkeypatch, slab_write, "outside", lambda f, start, count, capacity: start.lt(0), check)


def test_every_float32_rounds_to_the_half_that_numpy_gives(kernels: Kernels) -> None:
    """Around each half: itself, the midpoints beside it, and their neighbours; and what no half is near."""
    kernel = KERNELS[0]
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = halves[np.isfinite(halves)]
    midpoints = (np.sort(finite)[1:] + np.sort(finite)[:-1]) / 2
    beside = [np.nextafter(midpoints, np.float32(toward)) for toward in (-math.inf, math.inf)]
    limits = np.float32([65519.996, 65520.0, 65536.0, 1e30, 1e-8, 2.9802322e-8, 1e-40, math.inf, math.nan])
    values = np.concatenate([halves, midpoints, *beside, limits, -limits])
    slab = kernel.slab
    each = slab.kv_heads * slab.dim * slab.capacity
    with np.errstate(over="ignore"):
        for at in range(0, len(values), each):
            part = np.resize(values[at : at + each], each)
            write = Write(kernels, kernel, slab.capacity, 0, slab.capacity)
            write.args[0] = part
            got = write.run()
            expected = (
                part.reshape(slab.capacity, slab.kv_heads, slab.dim).transpose(1, 0, 2).astype(np.float16)
            )
            np.testing.assert_array_equal(got, expected)
            numbers = ~np.isnan(expected)  # and zeros keep their sign
            np.testing.assert_array_equal(got.view(np.uint16)[numbers], expected.view(np.uint16)[numbers])


def test_blocks_of_any_size_are_rounded_as_the_rule_says(kernels: Kernels) -> None:
    """Integers and scales byte for byte: from scales that vanish or lose bits to those that are infinite."""
    for kernel in KERNELS[6:10]:
        slab = kernel.slab
        rng = np.random.default_rng(3)
        x = rng.standard_normal((slab.capacity, slab.kv_heads, slab.dim)).astype(np.float32)
        x *= np.exp2(rng.integers(-40, 30, (slab.capacity, slab.kv_heads, 1))).astype(np.float32)
        x[1], x[2, :, :5], x[3, :, 7], x[4, :, 9] = 0.0, -0.0, math.nan, -math.inf
        x[5] = np.float32(127 * 2.0**-24) * rng.uniform(0.4, 1.6, x[5].shape)  # the least scales
        x[6] = rng.integers(-254, 255, x[6].shape) / 2  # halves between integers,
        x[6, :, 0] = x[6, :, -1] = 127.0  # the scale being one
        x[7, :, 3] = 1e-42
        x[8] = 127 * 65519.0
        x[9] = 127 * 65521.0
        write = Write(kernels, kernel, slab.capacity, 0, slab.capacity)
        write.args[0] = at_page_end(x.reshape(-1))
        write.run()
        values, scales = slab._views(write.slab)
        q, d = quantize(x.transpose(1, 0, 2))

        def rows(stored: np.ndarray, slab: SlabGeometry = slab) -> np.ndarray:
            return stored.reshape(slab.kv_heads, -1, stored.shape[-1])[:, : slab.capacity]

        np.testing.assert_array_equal(rows(scales), d)
        np.testing.assert_array_equal(rows(values)[..., : slab.dim], q[..., : slab.dim])
        if slab.role == "v":
            assert not rows(values)[..., slab.dim :].any()


@pytest.mark.parametrize(
    "slab", [slab for slab in GEOMETRIES if slab.quantized], ids=lambda slab: f"{slab.encoding} {slab.dim}"
)
def test_a_quantized_slab_speaks_its_logical_shape(slab: SlabGeometry) -> None:
    shape = (1, slab.kv_heads, slab.capacity, slab.dim)
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    buffer = np.full(slab.nbytes, 0x55, np.uint8)
    slab.from_logical(values, buffer)
    np.testing.assert_array_equal(slab.to_logical(buffer), stored(enc.Q8_0, values))
    q, d = quantize(values)
    head, position, e = slab.kv_heads - 1, slab.capacity - 1, slab.dim - 1
    at, block = head * slab.head_stride, position // 32
    blocks, parts = -(-slab.capacity // 32), -(-slab.dim // 32)
    scale = at + blocks * 32 * parts * 32 + (block * parts * 32 + e // 32 * 32 + position % 32) * 2
    assert buffer[scale : scale + 2].view(np.float16)[0] == d[0, head, position, e // 32]
    if slab.role == "k":
        at += block * parts * 32 * 32 + e * 32 + position % 32
    else:
        at += position * parts * 32 + e
    assert buffer.view(np.int8)[at] == q[0, head, position, e]
    positions = slab.kv_heads * slab.capacity * parts  # what is written: blocks of them, and their scales
    assert (buffer != 0x55).sum() <= positions * 34
    assert (buffer == 0x55).sum() >= slab.nbytes - positions * 34


@pytest.mark.parametrize(
    "slab",
    [slab for slab in GEOMETRIES if not slab.quantized],
    ids=lambda slab: f"{slab.encoding} {slab.dim}",
)
def test_a_slab_speaks_its_logical_shape(slab: SlabGeometry) -> None:
    shape = (1, slab.kv_heads, slab.capacity, slab.dim)
    assert SlabGeometry.of(shape, slab.kv, slab.role) == slab
    numpy = enc.element(slab.kv).numpy
    values = np.random.default_rng(1).standard_normal(shape).astype(numpy)
    buffer = np.full(slab.nbytes, 0x55, np.uint8)
    slab.from_logical(values, buffer)
    np.testing.assert_array_equal(slab.to_logical(buffer), values)
    held = buffer.view(numpy)
    pad = np.frombuffer(b"\x55" * slab.element, numpy)[0]
    assert (held == pad).sum() == held.size - values.size
    head, position, d = slab.kv_heads - 1, slab.capacity - 1, slab.dim - 1
    at = head * slab.head_stride
    if slab.role == "k":
        at += (position // 32 * slab.dim * 32 + d * 32 + position % 32) * slab.element
    else:
        at += (position * slab.width + d) * slab.element
    assert held[at // slab.element] == values[0, head, position, d]


def test_encodings_are_distinct_and_not_plain() -> None:
    types = (enc.F16, enc.F32, enc.Q8_0)
    encodings = {slab_encoding(kv, role): (kv, role) for kv in types for role in "kv"}
    assert len(encodings) == 6
    for encoding, (kv, role) in encodings.items():
        assert not encoding.is_plain
        assert encoding.bits == kv.bits
        assert slab_kind(encoding) == (kv, role)
    assert slab_kind(enc.Q8_0) is None
