"""The reference device with the wishes of a native one: rounded operands, joined products, regions.

It runs them by decomposition, so what plans make of such wishes is tested without any kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ostinato.device.traits import WritePath
from ostinato.devices.reference.device import DENSE, LAYOUTS, ReferenceDevice
from ostinato.ir import encoding as enc
from ostinato.ir.ops.quantize import QuantizeRows
from ostinato.plan.regions import PATTERNS

EVERY_PATTERN = tuple(PATTERNS)


class FusedDevice(ReferenceDevice):
    """`quantize` gives the block for products with weights of an encoding; nothing by default."""

    def __init__(
        self,
        ordinal: int = 0,
        *,
        write_path: WritePath = WritePath.DEVICE_OFFSET,
        regions: Iterable[str] = EVERY_PATTERN,
        row_group: int | None = 16,
        quantize: Mapping[enc.Encoding, int] = MappingProxyType({}),
    ) -> None:
        super().__init__(ordinal, write_path)
        rounding = {
            encoding: replace(DENSE, rounding=QuantizeRows(block)) for encoding, block in quantize.items()
        }
        self.traits = replace(
            self.traits,
            regions=frozenset(regions),
            row_group=row_group,
            weight_layouts=MappingProxyType({**LAYOUTS, **rounding}),
        )
