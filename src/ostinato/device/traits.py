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


@dataclass(frozen=True, slots=True)
class Traits:
    """`ops`, `dtypes` and `weight_layouts` (source encoding → packed form) are what there are kernels for;
    `kv_dtypes` are the slab types that attention reads. With `dynamic_rows` one plan takes any row count;
    with `bit_contract` a row's bits don't depend on the rows computed beside it.
    """

    ops: frozenset[type[Op]]
    dtypes: frozenset[DType]
    weight_layouts: Mapping[Encoding, WeightLayout]
    kv_dtypes: tuple[DType, ...]
    write_path: WritePath
    dynamic_rows: bool
    bit_contract: bool
    can_capture: bool
