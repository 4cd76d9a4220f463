"""The process's devices: the package's only module-level mutable state."""

from __future__ import annotations

import threading
from types import MappingProxyType

from ostinato.device.contract import Device
from ostinato.device.topology import TopologySnapshot
from ostinato.errors.device import DeviceAlreadyRegistered, NoDevice, TopologyChanged
from ostinato.ir.location import Location


class Registry:
    """Devices by location, and the topology generation that every change of them bumps. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._devices: dict[Location, Device] = {}
        self._generation = 0

    @property
    def generation(self) -> int:
        return self._generation

    def check_generation(self, planned: int) -> None:
        """Raises TopologyChanged when devices came or went since generation `planned`."""
        if planned != self._generation:
            raise TopologyChanged(planned, self._generation)

    def register(self, device: Device) -> None:
        """Raises DeviceAlreadyRegistered."""
        with self._lock:
            if device.location in self._devices:
                raise DeviceAlreadyRegistered(str(device.location))
            self._devices[device.location] = device
            self._generation += 1

    def unregister(self, location: Location) -> None:
        """Raises NoDevice."""
        with self._lock:
            if self._devices.pop(location, None) is None:
                raise self._missing(location)
            self._generation += 1

    def device(self, location: Location) -> Device:
        """Raises NoDevice."""
        try:
            return self._devices[location]
        except KeyError:
            raise self._missing(location) from None

    def __contains__(self, location: Location) -> bool:
        return location in self._devices

    def snapshot(self) -> TopologySnapshot:
        with self._lock:
            traits = {location: device.traits for location, device in self._devices.items()}
            return TopologySnapshot(self._generation, MappingProxyType(traits))

    def _missing(self, location: Location) -> NoDevice:
        return NoDevice(str(location), tuple(sorted(map(str, self._devices))))


registry = Registry()
