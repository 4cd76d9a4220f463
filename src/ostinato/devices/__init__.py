"""The shipped devices, a folder each."""

from __future__ import annotations


def register_defaults() -> None:
    """Register every shipped device that this process doesn't have yet; safe to call again."""
    from ostinato.devices.reference import ReferenceDevice
    from ostinato.errors.device import DeviceAlreadyRegistered
    from ostinato.ir.location import Location
    from ostinato.runtime.registry import registry

    if Location("reference") not in registry:
        try:
            registry.register(ReferenceDevice())
        except DeviceAlreadyRegistered:  # another thread was first
            pass


def default_location() -> str:
    """The kind of device used where none is asked for."""
    return "reference"
