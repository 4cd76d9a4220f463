"""What this installation has to work with, and what is wrong with it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ostinato import devices, hub
from ostinato.device.measures import ReadsMemory, SelfTesting
from ostinato.devices.cpu import isa, llvm
from ostinato.devices.cpu.code_cache import CodeCache
from ostinato.errors.base import OstinatoError
from ostinato.errors.generate import InvalidSetting
from ostinato.host import dirs, env, machine
from ostinato.host.limits import available_memory, cpu_limits
from ostinato.host.version import __version__
from ostinato.hub.cache import path_of
from ostinato.hub.installed import find as find_installed
from ostinato.ir.location import Location
from ostinato.runtime.registry import registry

SAMPLES = 3
ROOM = 1 << 30
"""Bytes that must be free before memory is read to see how fast it is: twice what that takes."""


@dataclass(frozen=True, slots=True)
class Problem:
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Threads:
    """`used` by default, None where OSTINATO_THREADS is no number; `quota` in CPUs."""

    used: int | None
    present: int
    allowed: int
    cores: int
    quota: float | None


@dataclass(frozen=True, slots=True)
class InstructionSets:
    """`usable` is empty where nothing can be compiled, `selected` also where OSTINATO_CPU asks for what isn't
    usable."""

    selected: str
    usable: tuple[str, ...]
    known: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CodeFolder:
    """`not_used_because`: why compiled code is not kept, None where it is."""

    path: str
    entries: int
    bytes: int
    cap: int
    not_used_because: str | None


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """`default`: where the default model lies, None before it is fetched."""

    path: str
    models: int
    bytes: int
    default: str | None


@dataclass(frozen=True, slots=True)
class DeviceState:
    """`default`: used where none is asked for. `why_not`: why it can't be made or used."""

    name: str
    default: bool
    why_not: str | None


@dataclass
class Health:
    """All that is known. `bandwidth`: bytes per second, by device; bytes are those free to allocate."""

    versions: Mapping[str, str]
    system: Mapping[str, str]
    threads: Threads
    instruction_sets: InstructionSets
    free_memory: int | None
    bandwidth: dict[str, float]
    code_cache: CodeFolder
    model_cache: ModelFolder
    devices: list[DeviceState]
    problems: list[Problem] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine(*, measure: bool = True) -> Health:
    """Look at everything; with `measure`, read some memory. Writes nothing but compiled code."""
    problems: list[Problem] = []
    health = Health(
        versions=_versions(),
        system={"os": platform.platform(), "cpu": machine.cpu_name()},
        threads=_threads(problems),
        instruction_sets=_instruction_sets(problems),
        free_memory=available_memory(),
        bandwidth={},
        code_cache=_code_cache(problems),
        model_cache=_model_cache(problems),
        devices=[_device(kind, problems) for kind in devices.SHIPPED],
        problems=problems,
    )
    if measure:
        _measure(health)
    return health


def _versions() -> dict[str, str]:
    found = {"ostinato": __version__, "python": platform.python_version(), "numpy": version("numpy")}
    with suppress(PackageNotFoundError, OstinatoError):  # the cpu device says what is wrong
        found["llvmlite"] = version("llvmlite")
        found["llvm"] = llvm.versions()[1]
    return found


def _threads(problems: list[Problem]) -> Threads:
    limits = cpu_limits()
    used: int | None = limits.threads
    try:
        asked = env.threads()
    except ValueError as error:
        used, asked = None, None
        problems.append(Problem(str(error), "Correct or unset OSTINATO_THREADS."))
    if asked is not None:
        used = asked
        if asked > limits.threads:
            what = f"OSTINATO_THREADS asks for {asked} threads, this process can have {limits.threads} cores"
            remedy = "Unset OSTINATO_THREADS: threads without a core make all others wait."
            problems.append(Problem(what, remedy))
    if limits.quota is not None and limits.quota < 1:
        what = f"a control group grants {limits.quota:g} of a CPU: every step is interrupted"
        problems.append(Problem(what, "Grant a whole CPU at least (docker run --cpus, Kubernetes limits)."))
    return Threads(used, limits.present, limits.allowed, limits.cores, limits.quota)


def _instruction_sets(problems: list[Problem]) -> InstructionSets:
    known, selected = tuple(isa.ISAS), ""
    usable: tuple[str, ...] = ()
    with suppress(OstinatoError):  # the cpu device says what is wrong
        usable = tuple(isa.usable())
        selected = isa.select().name
    if selected == known[-1] and env.instruction_set() is None:
        what = f"this CPU has none of {', '.join(known[:-1])}: generic code is several times as slow"
        problems.append(Problem(what, "In a virtual machine, let it pass the host's CPU through."))
    return InstructionSets(selected, usable, known)


def _code_cache(problems: list[Problem]) -> CodeFolder:
    cache = CodeCache.of_user()
    assert cache.folder is not None
    reason = cache.doubt() or _not_writable(cache.folder)
    if reason:
        remedy = "Let OSTINATO_CACHE_DIR name a folder that you alone can write (chmod 700)."
        problems.append(Problem(f"compiled code is not kept in {cache.folder}: {reason}", remedy))
    entries = cache.entries()
    size = sum(entry.nbytes for entry in entries)
    return CodeFolder(str(cache.folder), len(entries), size, cache.max_bytes, reason or None)


def _model_cache(problems: list[Problem]) -> ModelFolder:
    folder, models = dirs.models_dir(create=False), hub.list_models()
    alias = hub.ALIASES[hub.DEFAULT_MODEL]
    default = path_of(alias)
    found = default if default.is_file() else find_installed(alias)
    if found is None and env.offline():
        what = f"the default model {hub.DEFAULT_MODEL} isn't there, and OSTINATO_OFFLINE forbids fetching it"
        problems.append(Problem(what, "Unset OSTINATO_OFFLINE once, or name a file (-m FILE.gguf)."))
    if found is None and (reason := _not_writable(folder)):
        what = f"models can't be kept in {folder}: {reason}"
        problems.append(Problem(what, "Let OSTINATO_CACHE_DIR name a folder that you can write."))
    size = sum(model.size for model in models)
    return ModelFolder(str(folder), len(models), size, None if found is None else str(found))


def _not_writable(folder: Path) -> str:
    """Why nothing can be written to a folder that may not be there yet; empty when it can."""
    for place in (folder, *folder.parents):
        if place.exists():
            return "" if os.access(place, os.W_OK | os.X_OK) else f"{place} can't be written"
    return ""


def _device(kind: str, problems: list[Problem]) -> DeviceState:
    location, default = Location(kind), kind == devices.default_location()
    try:
        devices.register_defaults(kind=kind)
        device = registry.device(location)
        if isinstance(device, SelfTesting):
            device.self_test()
    except (OstinatoError, RuntimeError, OSError, MemoryError) as error:
        said = isinstance(error, InvalidSetting) and error.field == "OSTINATO_THREADS"
        if not said:
            problems.append(Problem(f"the device {location} can't be used: {error}", _remedy(error)))
        return DeviceState(str(location), default, str(error))
    return DeviceState(str(location), default, None)


def _remedy(error: BaseException) -> str:
    if isinstance(error, InvalidSetting):
        return f"Correct or unset {error.field}."
    return error.remedy if isinstance(error, OstinatoError) else ""


def _measure(health: Health) -> None:
    if health.free_memory is not None and health.free_memory < ROOM:
        what = f"{health.free_memory / 1e6:.0f} MB are free: too little to measure how fast memory is read"
        health.problems.append(Problem(what, "Free some memory; a model needs some as well."))
        return
    for state in health.devices:
        if state.why_not is None:
            device = registry.device(Location.parse(state.name))
            if isinstance(device, ReadsMemory):
                yardstick = device.read_bandwidth()
                for _ in range(SAMPLES):
                    yardstick.sample()
                health.bandwidth[state.name] = yardstick.best
