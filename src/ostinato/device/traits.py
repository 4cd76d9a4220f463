"""What a device can do, as a value that plans read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding
from ostinato.ir.op import Op
from ostinato.ir.ops.quantize import Rounding


class WritePath(Enum):
    """How a step tells a KV write its position."""

    DEVICE_OFFSET = "device_offset"
    """`start` is a rank-0 int64 buffer: nothing about the position is baked, a capture stays valid."""
    SYMBOLIC = "symbolic"
    """`start` is a symbol whose value rides in the SymEnv."""


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """The packed form of a weight encoding on one device: its name, and what the packed bytes are."""

    name: str
    stored: Encoding
    rounding: Rounding | None = None
    """What products with such a weight want their operand through."""
    rows: int = 1
    """Rows that a block of `stored` covers, an equal share of it each; whole blocks are filled up."""

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a weight `[..., k]`, packed."""
        rows, k = prod(shape[:-1]), shape[-1]
        blocks = -(-rows // self.rows) * -(-k * self.rows // self.stored.block)
        return blocks * self.stored.block_bytes


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """How a device stores the K and V slabs of one KV type. `k_fill` and `v_fill`: the multiples that
    positions and the elements of a position are filled up to."""

    k: Encoding
    v: Encoding
    k_fill: tuple[int, int] = (1, 1)
    v_fill: tuple[int, int] = (1, 1)

    def nbytes(self, shape: Sequence[int], role: str) -> int:
        """Bytes of a slab of the logical `shape` `[1, kv_heads, capacity, head_dim]`, `role` "k" or "v"."""
        encoding, fill = {"k": (self.k, self.k_fill), "v": (self.v, self.v_fill)}[role]
        _, heads, *cells = shape
        elements = heads * prod(-(-n // each) * each for n, each in zip(cells, fill, strict=True))
        return elements // encoding.block * encoding.block_bytes


@dataclass(frozen=True, slots=True)
class Traits:
    """`ops` and `dtypes` are what there are kernels for; `weight_layouts` (of matrices) and `vector_layouts`
    map a weight's source encoding to its packed form; `kv_layouts` maps the KV types that attention reads
    (F16, F32, Q8_0: what a cache's numbers are rounded to) to how slabs store them, the usual one first. With
    `dynamic_rows` one plan takes any row count; with `bit_contract` a row's bits don't depend on the rows
    computed beside it.

    What a device asks of its plans: `regions` are the patterns (`plan.regions`) that it has one kernel for;
    `row_group` is how many rows its packed products take at a time, and products of one operand are then
    joined (None: they stay apart).
    """

    ops: frozenset[type[Op]]
    dtypes: frozenset[DType]
    weight_layouts: Mapping[Encoding, WeightLayout]
    vector_layouts: Mapping[Encoding, WeightLayout]
    kv_layouts: Mapping[Encoding, SlabLayout]
    write_path: WritePath
    dynamic_rows: bool
    bit_contract: bool
    can_capture: bool
    regions: frozenset[str] = frozenset()
    row_group: int | None = None

    def layout(self, encoding: Encoding, rank: int) -> WeightLayout | None:
        """The packed form of a weight of `rank` axes; None where there is none."""
        return (self.vector_layouts if rank == 1 else self.weight_layouts).get(encoding)

    @property
    def kv_dtype(self) -> Encoding:
        """The KV type of caches that don't ask for another."""
        return next(iter(self.kv_layouts))

    def kv_type(self, stored: Encoding) -> Encoding | None:
        """The KV type whose slabs are stored so; None where there is none."""
        layouts = self.kv_layouts.items()
        return next((kv for kv, layout in layouts if stored in (layout.k, layout.v)), None)
