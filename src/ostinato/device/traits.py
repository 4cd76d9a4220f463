"""What a device can do, as a value that plans read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding
from ostinato.ir.op import Op


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
    quantize: int | None = None
    """Products with such a weight want their operand through QuantizeRows of this block."""


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """How a device stores the K and V slabs of one element type."""

    k: Encoding
    v: Encoding


@dataclass(frozen=True, slots=True)
class Traits:
    """`ops` and `dtypes` are what there are kernels for; `weight_layouts` (of matrices) and `vector_layouts`
    map a weight's source encoding to its packed form; `kv_layouts` maps the slab types that attention reads
    to how they are stored, the usual one first. With `dynamic_rows` one plan takes any row count; with
    `bit_contract` a row's bits don't depend on the rows computed beside it.

    What a device asks of its plans: `regions` are the patterns (`plan.regions`) that it has one kernel for;
    `row_group` is how many rows its packed products take at a time, and products of one operand are then
    joined (None: they stay apart).
    """

    ops: frozenset[type[Op]]
    dtypes: frozenset[DType]
    weight_layouts: Mapping[Encoding, WeightLayout]
    vector_layouts: Mapping[Encoding, WeightLayout]
    kv_layouts: Mapping[DType, SlabLayout]
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
    def kv_dtype(self) -> DType:
        """The slab type of caches that don't ask for another."""
        return next(iter(self.kv_layouts))
