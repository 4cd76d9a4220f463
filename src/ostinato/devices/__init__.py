"""The shipped devices, a folder each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.device.contract import Device

SHIPPED = ("reference", "cpu")


def default_location() -> str:
    """The kind of device used where none is asked for."""
    return "cpu"


def register_defaults(threads: int | None = None, kind: str | None = None) -> None:
    """Register the shipped devices that this process doesn't have yet; safe to call again.

    Of a shipped `kind`, that one and `reference` alone. `threads` sets how many CPU threads they use, *for
    the whole process*: devices are the process's, so a later call changes the number for everyone who runs on
    them. By default `OSTINATO_THREADS` or the physical cores that this process may use.

    Raises InvalidSetting for an OSTINATO_THREADS that is no number, and for the kind "cpu" what `CpuDevice`
    raises; where no such kind is asked for, a device that can't be made is left out, and the log says why.
    """
    import logging

    from ostinato.errors.base import OstinatoError

    count = threads or _threads()
    for each in SHIPPED:
        if kind in SHIPPED and each not in ("reference", kind):
            continue
        try:
            _register(each, count, change=threads is not None)
        except OstinatoError as error:
            if each == kind:
                raise
            logging.getLogger("ostinato.devices").warning("there is no %s device: %s", each, error)


def _register(kind: str, threads: int, *, change: bool) -> None:
    from contextlib import suppress

    from ostinato.errors.device import DeviceAlreadyRegistered
    from ostinato.ir.location import Location
    from ostinato.runtime.registry import registry

    location = Location(kind)
    if location not in registry:
        with suppress(DeviceAlreadyRegistered):  # another thread was first
            registry.register(_made(kind, threads))
    elif change:
        set_threads = getattr(registry.device(location), "set_threads", None)
        if set_threads is not None:  # someone's own device keeps its own ways
            set_threads(threads)


def _made(kind: str, threads: int) -> Device:
    if kind == "reference":
        from ostinato.devices.reference import ReferenceDevice

        return ReferenceDevice(threads=threads)
    from ostinato.devices.cpu.code_cache import CodeCache
    from ostinato.devices.cpu.device import CpuDevice

    return CpuDevice(threads=threads, cache=CodeCache.of_user())


def _threads() -> int:
    import os

    from ostinato.errors.generate import InvalidSetting
    from ostinato.host.limits import cpu_threads

    try:
        return cpu_threads()
    except ValueError as error:
        asked = repr(os.environ.get("OSTINATO_THREADS"))
        raise InvalidSetting("OSTINATO_THREADS", "an integer of at least 1", asked) from error
