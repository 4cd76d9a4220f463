"""The folder of cached models: what lies in it, and how it is removed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ostinato.errors.host import CacheNotWritable
from ostinato.errors.hub import ModelNotCached, OutsideCache
from ostinato.host import atomic, dirs, locks
from ostinato.hub import aliases, checksum, marker, progress
from ostinato.hub.aliases import Alias

_SUFFIX = ".gguf"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One model file in the cache: `size` in bytes; `source` brought it (pip, uv, "unknown").

    `alias` is the short name that resolves to it, None for a file that no alias stands for (any more).
    `verified`: it has been hashed and not changed since.
    """

    name: str
    alias: str | None
    path: Path
    size: int
    source: str
    verified: bool


def path_of(alias: Alias) -> Path:
    """Where the alias's file is cached, whether or not it is."""
    return dirs.models_dir(create=False) / alias.file_name


def find(alias: Alias) -> Path | None:
    """The alias's cached file if it is the right one; one that may have changed is hashed again first."""
    path = path_of(alias)
    return path if verify(path, alias, _marker_file(path), "unknown") else None


def verify(path: Path, alias: Alias, marker_file: Path, source: str) -> bool:
    """Whether the file at `path` is the alias's: remembered in `marker_file`, or else hashed and remembered.

    False for a file that is not there or cannot be read.
    """
    known = marker.load(marker_file)
    if known is not None and known.sha256 == alias.sha256 and known.holds_for(path):
        return True
    try:
        stat = path.stat()
        if not checksum.matches(path, alias):
            return False
    except OSError:
        return False
    same_file = known is not None and known.path == str(path) and known.sha256 == alias.sha256
    source = known.source if known is not None and same_file else source
    with contextlib.suppress(OSError):
        dirs.models_dir()  # there may be no cache yet when an installed package has the file
    marker.store(marker_file, marker.Marker.of(path, stat, alias.sha256, source))
    return True


def remember(alias: Alias, source: str) -> None:
    """Records that the alias's cached file was verified as it arrived from `source`."""
    path = path_of(alias)
    marker.store(_marker_file(path), marker.Marker.of(path, path.stat(), alias.sha256, source))


def installed_marker(alias: Alias) -> Path:
    """Where the verification of the alias's file in an installed package is remembered."""
    return dirs.models_dir(create=False) / f"{alias.name}.installed.json"


@contextlib.contextmanager
def lock(name: str, *, wanted_progress: bool = False) -> Iterator[None]:
    """Creates the cache and holds the lock of the model `name` in it. Raises `CacheNotWritable`."""

    def waiting() -> None:
        progress.say(f"another process is fetching {name}: waiting for it", wanted=wanted_progress)

    with contextlib.ExitStack() as held:
        try:
            file = dirs.models_dir() / f".{name}.lock"
            held.enter_context(locks.process_lock(file, on_wait=waiting))
        except OSError as error:
            raise not_writable(error) from error
        yield


def not_writable(error: OSError) -> CacheNotWritable:
    """The typed error for what the system said about the cache."""
    where = dirs.models_dir(create=False)
    return CacheNotWritable(where=str(where), reason=error.strerror or str(error))


def list_models() -> list[CachedModel]:
    """The cached model files by name. Hashes nothing, writes nothing; no cache is an empty list."""
    folder = dirs.models_dir(create=False)
    try:
        paths = sorted(path for path in folder.iterdir() if _is_model(path))
    except OSError:
        return []
    return [entry for path in paths if (entry := _entry(path)) is not None]


def remove(reference: str) -> CachedModel:
    """Removes one cached model, by its name or its path inside the cache, and returns what it was.

    Raises `OutsideCache` for anything elsewhere, `ModelNotCached`, `CacheNotWritable`.
    """
    folder = dirs.models_dir(create=False)
    path = folder / (reference if reference.endswith(_SUFFIX) else reference + _SUFFIX)
    if "\0" in reference:
        raise _not_cached(reference)
    require_inside(path, folder, reference)
    if not _is_model(path):
        raise _not_cached(reference)
    with lock(path.stem):
        entry = _entry(path)
        if entry is None:
            raise _not_cached(reference)
        try:
            # The marker goes first: killed in between, a file without one is merely hashed again.
            _marker_file(path).unlink(missing_ok=True)
            path.unlink()
            atomic.sweep(path.parent, name=path.name, older_than=0)
        except OSError as error:
            raise not_writable(error) from error
    return entry


def require_inside(path: Path, folder: Path, reference: str) -> None:
    """The guard of every removal: `path` lies directly in `folder`, symbolic links followed up to its name.

    The name itself may be a link: removing it removes the link, not what it points to.
    """
    if path.name in {"", ".", ".."} or path.parent.resolve() != folder.resolve():
        raise OutsideCache(reference=reference, where=str(folder))


def _is_model(path: Path) -> bool:
    return path.suffix == _SUFFIX and not path.name.startswith(".") and path.is_file()


def _entry(path: Path) -> CachedModel | None:
    """What is known about a cached file; None when it has just gone."""
    known = marker.load(_marker_file(path))
    try:
        size = os.stat(path).st_size
    except OSError:
        return None
    return CachedModel(
        name=path.stem,
        alias=path.stem if path.stem in aliases.ALIASES else None,
        path=path,
        size=size,
        source=known.source if known is not None else "unknown",
        verified=known is not None and known.holds_for(path),
    )


def _marker_file(path: Path) -> Path:
    return path.with_suffix(".json")


def _not_cached(reference: str) -> ModelNotCached:
    return ModelNotCached(reference=reference, cached=tuple(model.name for model in list_models()))
