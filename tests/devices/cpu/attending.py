"""Attention kernels over slabs of random numbers, and what they should give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from devices.cpu.running import Kernels, aligned, at_page_end
from ostinato.device.kv_q8_0 import dequantize, quantize
from ostinato.devices.cpu.kernels.attention import AttendMany, AttendOne
from ostinato.devices.cpu.kernels.attention_shape import SPAN
from ostinato.devices.cpu.slabs import SlabGeometry
from ostinato.ir import encoding as enc


@dataclass(frozen=True)
class Case:
    """What kernels are specialised for."""

    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    capacity: int
    kv: enc.Encoding = enc.F16
    window: int | None = None
    masked: bool = False
    rot: int = 0

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.k_dim)

    @property
    def fields(self) -> dict[str, Any]:
        rope = {"rot": self.rot, "q_rope": self.rot > 0}
        names = ("heads", "kv_heads", "k_dim", "v_dim", "capacity", "kv", "scale", "window", "masked")
        return {name: getattr(self, name) for name in names} | rope

    @property
    def one(self) -> AttendOne:
        """With its slab writes."""
        return AttendOne(**self.fields, write=True, k_rope=self.rot > 0)

    @property
    def reader(self) -> AttendOne:
        """Over slabs that hold the row already."""
        return AttendOne(**self.fields)

    @property
    def many(self) -> AttendMany:
        return AttendMany(**self.fields, q_stride=self.heads * self.k_dim)


CASES = {
    "grouped": Case(9, 3, 64, 64, 333, rot=64),
    "f32, part of the head rotated": Case(6, 2, 24, 40, 301, enc.F32, rot=10),
    "window": Case(4, 4, 8, 8, 320, window=40),
    "one KV head, wide": Case(5, 1, 80, 72, 256, window=130, rot=80),
    "odd dims, masked": Case(4, 2, 17, 5, 300, enc.F32, masked=True),
    "masked window": Case(4, 2, 40, 24, 300, window=50, masked=True, rot=40),
    "one element": Case(5, 1, 1, 1, 310, enc.F32),
    "q8_0": Case(9, 3, 64, 64, 333, enc.Q8_0, rot=64),
    "q8_0, part of a block, window": Case(6, 2, 24, 40, 301, enc.Q8_0, window=70, rot=10),
    "q8_0, masked": Case(4, 2, 80, 17, 300, enc.Q8_0, masked=True),
}


def stored(kv: enc.Encoding, values: np.ndarray) -> np.ndarray:
    """What a slab of this type makes of the values `[..., dim]`."""
    if kv == enc.Q8_0:
        return dequantize(*quantize(values), values.shape[-1])
    return values.astype(enc.element(kv).numpy)


def slab_of(geometry: SlabGeometry, values: np.ndarray, fill: int = 0) -> np.ndarray:
    """A slab's bytes, up against a page that nothing may touch; what pads the values is `fill`."""
    buffer = at_page_end(np.full(geometry.nbytes, fill, np.uint8))
    geometry.from_logical(values, buffer)
    return buffer


@dataclass
class World:
    """Slabs `[1, kv_heads, capacity, dim]` whose rows came of `k_rows` and `v_rows`
    `[capacity, kv_heads, dim]`; queries `[capacity, heads, k_dim]`, row i for position i."""

    case: Case
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def __post_init__(self) -> None:
        case, rng = self.case, self.rng

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        self.q = normal(case.capacity, case.heads, case.k_dim)
        self.k_rows = normal(case.capacity, case.kv_heads, case.k_dim)
        self.v_rows = normal(case.capacity, case.kv_heads, case.v_dim)
        angles = rng.uniform(-3, 3, (case.capacity, max(case.rot // 2, 1))).astype(np.float32)
        self.cos, self.sin = np.cos(angles), np.sin(angles)
        self.mask = normal(case.capacity, case.capacity)
        self.mask[rng.random(self.mask.shape) < 0.3] = -math.inf
        self.mask[:, 0] = 0.5  # each row has something to attend
        np.fill_diagonal(self.mask, 0.25)
        self.k = stored(case.kv, self.rotated(self.k_rows).transpose(1, 0, 2)[np.newaxis])
        self.v = stored(case.kv, self.v_rows.transpose(1, 0, 2)[np.newaxis])

    def rotated(self, x: np.ndarray) -> np.ndarray:
        """`ir.ops.nn.Rope` in float32; x `[capacity, heads, dim]`."""
        half = self.case.rot // 2
        if not half:
            return x
        cos, sin = self.cos[:, np.newaxis], self.sin[:, np.newaxis]
        a, b = x[..., :half], x[..., half : 2 * half]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], axis=-1)

    def cells(self, position: int, length: int | None = None) -> np.ndarray:
        """The positions that the row at `position` attends."""
        case = self.case
        low = 0 if case.window is None else max(0, position - case.window + 1)
        cells = np.arange(low, min(position + 1, length if length is not None else position + 1))
        return cells[self.mask[position, cells] != -math.inf] if case.masked else cells

    def expected(self, start: int, rows: int, length: int | None = None) -> np.ndarray:
        """Row by row and head by head in float64, over the attended cells alone: `[rows, heads · v_dim]`."""
        case = self.case
        out = np.zeros((rows, case.heads, case.v_dim))
        q = self.rotated(self.q).astype(np.float64)
        for row in range(rows):
            position = start + row
            cells = self.cells(position, length)
            for head in range(case.heads):
                kv_head = head // (case.heads // case.kv_heads)
                scores = self.k[0, kv_head, cells].astype(np.float64) @ q[position, head] * case.scale
                if case.masked:
                    scores += self.mask[position, cells]
                weights = np.exp(scores - scores.max())
                out[row, head] = weights / weights.sum() @ self.v[0, kv_head, cells].astype(np.float64)
        return out.reshape(rows, -1)

    def slabs(self, positions: int, fill: float = 0.0, padding: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """K and V slabs that hold the first `positions` rows, and `fill` in the others."""
        k, v = self.k.copy(), self.v.copy()
        k[:, :, positions:] = fill
        v[:, :, positions:] = fill
        return slab_of(self.case.many.k, k, padding), slab_of(self.case.many.v, v, padding)


@dataclass
class Step:
    """A run of `AttendOne` that can be taken in parts."""

    kernels: Kernels
    world: World
    kernel: AttendOne
    start: int
    k: np.ndarray
    v: np.ndarray
    length: int | None = None
    count: int = 1

    def __post_init__(self) -> None:
        world, kernel, at = self.world, self.kernel, self.start
        case = world.case
        self.length = self.start + 1 if self.length is None else self.length
        self.error = np.zeros(3, np.int64)
        self.counters = np.zeros(case.kv_heads, np.int32)
        self.partials = at_page_end(np.full(kernel.partial_bytes, 0xFF, np.uint8))
        self.out = at_page_end(np.full(case.heads * case.v_dim, 99, np.float32))
        row = min(max(at, 0), case.capacity - 1)  # a start that is refused has no row of its own
        tables = at_page_end(world.cos[row]), at_page_end(world.sin[row])
        arrays: dict[str, Any] = {
            "q": at_page_end(world.q[row]),
            "k_new": at_page_end(world.k_rows[row]),
            "v_new": at_page_end(world.v_rows[row]),
            "k_slab": self.k,
            "v_slab": self.v,
            "start": np.array([at]),
            "count": np.array([self.count]),
            "length": np.array([self.length]),
            "partials": self.partials,
            "counters": self.counters,
            "out": self.out,
            "mask": at_page_end(world.mask[row]),
            "error": self.error,
            "code_n": 5,
        }
        arrays |= dict(zip(("q_cos", "q_sin"), tables, strict=True))
        arrays |= dict(zip(("k_cos", "k_sin"), tables, strict=True))
        self.args = [arrays[name] for name in kernel.params]

    @property
    def items(self) -> int:
        assert self.length is not None
        return self.world.case.kv_heads * -(-self.length // SPAN)

    def part(self, low: int, high: int) -> None:
        self.kernels.run(self.kernel, self.args, low, high)

    def run(self) -> np.ndarray:
        self.part(0, self.items)
        return self.out


def attend_many(
    kernels: Kernels,
    world: World,
    start: int,
    rows: int,
    slabs: Sequence[np.ndarray],
    ranges: Sequence[tuple[int, int]] | None = None,
    length: int | None = None,
) -> np.ndarray:
    """`AttendMany` over rows start … start + rows - 1: `[rows, heads · v_dim]`."""
    case, kernel = world.case, world.case.many
    out = at_page_end(np.full((rows, case.heads * case.v_dim), 99, np.float32))
    error = np.zeros(3, np.int64)
    arrays: dict[str, Any] = {
        "q": at_page_end(world.q[start : start + rows]),
        "q_cos": at_page_end(world.cos[start : start + rows]),
        "q_sin": at_page_end(world.sin[start : start + rows]),
        "k_slab": slabs[0],
        "v_slab": slabs[1],
        "start": np.array([start]),
        "length": np.array([start + rows if length is None else length]),
        "rows": np.array([rows]),
        "out": out,
        "mask": at_page_end(world.mask[start : start + rows]),
        "error": error,
        "code_n": 5,
    }
    items = -(-rows // kernel.rows_per_item) * case.kv_heads
    for low, high in ranges or [(0, items)]:
        kernels.run(kernel, [arrays[name] for name in kernel.params], low, high)
    assert not error.any(), error
    return out


def bits(values: np.ndarray) -> np.ndarray:
    """For comparing bit for bit, NaN being NaN."""
    words = values.view(np.uint32).copy()
    words[np.isnan(values)] = 0x7FC00000
    return words


def all_kernels(isa: Any) -> Kernels:
    """The kernels of every case in one module."""
    kernels = [kernel for case in CASES.values() for kernel in (case.one, case.many)]
    return Kernels(isa, [*kernels, CASES["grouped"].reader])


__all__ = ["CASES", "Case", "Step", "World", "aligned", "all_kernels", "attend_many", "bits", "slab_of"]
