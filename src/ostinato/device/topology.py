"""The set of devices at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ostinato.device.traits import Traits
from ostinato.errors.device import NoDevice
from ostinato.ir.location import Location


@dataclass(frozen=True, slots=True)
class TopologySnapshot:
    """Which devices exist and what they can do, as plans see them. `generation` grows with every change."""

    generation: int
    traits: Mapping[Location, Traits]

    def __getitem__(self, location: Location) -> Traits:
        """Raises NoDevice."""
        try:
            return self.traits[location]
        except KeyError:
            raise NoDevice(str(location), tuple(sorted(map(str, self.traits)))) from None
