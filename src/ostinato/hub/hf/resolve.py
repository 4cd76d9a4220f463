"""From a reference to a model on Hugging Face to its files in Hugging Face's cache."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

from ostinato.errors.base import OstinatoError
from ostinato.errors.huggingface import HubDiskFull, HubRevisionMissing, HubUnreachable
from ostinato.hub.hf import client, gguf, safetensors, snapshot
from ostinato.hub.hf.names import Listing, RepoFile
from ostinato.hub.hf.reference import HubReference, parse

CACHED = "hugging face cache"
FETCHED = "hugging face"

_PATIENCE = 5.0  # seconds for the question whether a cached revision is still the newest
_SLACK = 32 << 20  # bytes that stay free beside what is fetched

_log = logging.getLogger("ostinato.hub")


def resolve_hub(text: str, *, offline: bool, progress: bool) -> tuple[Path, str]:
    """The first (or only) GGUF file that `text` names, or the folder of a safetensors model; and its source.

    Hugging Face is asked what the revision holds now, and only what is not cached is fetched. When it cannot
    be asked, the cached files are used with a note in the log; `offline` does not ask. A commit with the very
    file in the cache needs no question either.

    Raises `MalformedHubReference` and the other `Hub...` errors, `PickleRefused`.
    """
    reference = parse(text)
    root = client.cache_root()
    forbidden = offline or client.offline()
    held = snapshot.find(root, reference) if forbidden or _settled(reference) else None
    if held is not None:
        return held, CACHED
    if forbidden:
        raise HubUnreachable(text, "the network is forbidden", offline=True, cached=_cached(root, reference))
    known = snapshot.cached(root, reference) is not None
    try:
        files = client.list_files(
            reference, min(_PATIENCE, client.patience()) if known else client.patience()
        )
    except HubRevisionMissing:
        raise
    except OstinatoError as error:
        held = snapshot.find(root, reference)
        if held is None:
            if isinstance(error, HubUnreachable):
                error.cached = _cached(root, reference)
            raise
        _log.warning("%s: using what is cached, which may not be the newest (%s)", text, error)
        return held, CACHED
    return _from_hub(reference, files, root, progress)


def require_room(root: Path, files: Iterable[RepoFile]) -> None:
    """The guard of the disk: room for all that is about to be fetched. Raises `HubDiskFull`."""
    needed = sum(file.size or 0 for file in files) + _SLACK
    disk = next(parent for parent in (root, *root.parents) if parent.exists())
    free = shutil.disk_usage(disk).free
    if free < needed:
        raise HubDiskFull(str(root), needed, free)


def _settled(reference: HubReference) -> bool:
    """Whether no answer of Hugging Face could change which file is meant."""
    return reference.pinned and reference.file is not None


def _from_hub(reference: HubReference, files: Listing, root: Path, progress: bool) -> tuple[Path, str]:
    top = snapshot.folder(root, reference.repo, files.commit)
    found = gguf.models(files.files)
    if found or reference.selector is not None:
        model = gguf.pick(reference, found)
        fetched = _fetch(reference, files.commit, model.files, root, progress)
        path = top / model.name
    else:
        names = safetensors.fixed_files(reference.repo, files)
        if safetensors.INDEX in names:
            # It says which files there are, and so comes first.
            early = _fetch(reference, files.commit, _named(files, [safetensors.INDEX]), root, progress)
            index = (top / safetensors.INDEX).read_bytes()
            names += safetensors.shards(reference.repo, files, index)
        else:
            early = False
        fetched = _fetch(reference, files.commit, _named(files, names), root, progress) or early
        path = top
    if not reference.pinned:
        snapshot.remember(root, reference, files.commit)
    return path, FETCHED if fetched else CACHED


def _fetch(
    reference: HubReference, commit: str, files: tuple[RepoFile, ...], root: Path, progress: bool
) -> bool:
    """Brings those of `files` that are not cached; whether there were any."""
    top = snapshot.folder(root, reference.repo, commit)
    missing = [file for file in files if not (top / file.name).is_file()]
    if missing:
        require_room(root, missing)
    for file in missing:
        client.fetch(reference, commit, file.name, wanted_progress=progress)
    return bool(missing)


def _named(files: Listing, names: Iterable[str]) -> tuple[RepoFile, ...]:
    return tuple(file for name in names if (file := files.named(name)) is not None)


def _cached(root: Path, reference: HubReference) -> tuple[str, ...]:
    held = snapshot.cached(root, reference)
    return () if held is None else tuple(model.name for model in gguf.models(held.files))
