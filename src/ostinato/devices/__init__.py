"""The shipped devices, a folder each."""

from __future__ import annotations


def default_location() -> str:
    """The kind of device used where none is asked for."""
    return "reference"


def register_defaults(threads: int | None = None) -> None:
    """Register every shipped device that this process doesn't have yet; safe to call again.

    `threads` sets how many CPU threads they use, *for the whole process*: devices are the process's, so a
    later call changes the number for everyone who runs on them. By default `OSTINATO_THREADS` or the
    physical cores that this process may use. Raises InvalidSetting for an OSTINATO_THREADS that is no number.
    """
    import os
    from contextlib import suppress

    from ostinato.devices.reference import ReferenceDevice
    from ostinato.errors.device import DeviceAlreadyRegistered
    from ostinato.errors.generate import InvalidSetting
    from ostinato.host.limits import cpu_threads
    from ostinato.ir.location import Location
    from ostinato.runtime.registry import registry

    reference = Location("reference")
    if reference not in registry:
        try:
            count = threads or cpu_threads()
        except ValueError as error:
            asked = repr(os.environ.get("OSTINATO_THREADS"))
            raise InvalidSetting("OSTINATO_THREADS", "an integer of at least 1", asked) from error
        with suppress(DeviceAlreadyRegistered):  # another thread was first
            registry.register(ReferenceDevice(threads=count))
    elif threads is not None:
        device = registry.device(reference)
        if isinstance(device, ReferenceDevice):  # someone's own device keeps its own ways
            device.set_threads(threads)
