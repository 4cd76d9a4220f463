"""What Hugging Face's cache holds of a repository, without asking anyone.

Layout: `models--ORG--NAME/refs/REVISION` holds a commit, `models--ORG--NAME/snapshots/COMMIT/` its files (see
"Understand caching" in the documentation of huggingface_hub).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ostinato.errors.huggingface import HubFileMissing, HubModelMissing, PickleRefused
from ostinato.hub.hf import gguf, names, safetensors
from ostinato.hub.hf.names import Listing, RepoFile
from ostinato.hub.hf.reference import HubReference, is_commit

_log = logging.getLogger("ostinato.hub")


def folder(root: Path, repo: str, commit: str) -> Path:
    """Where the files of `repo` at `commit` lie in the cache `root`."""
    return _storage(root, repo) / "snapshots" / commit


def cached(root: Path, reference: HubReference) -> Listing | None:
    """The files that are there of the reference's revision, None when it was never fetched."""
    commit = reference.revision
    if not reference.pinned:
        try:
            commit = (_storage(root, reference.repo) / "refs" / reference.revision).read_text().strip()
        except (OSError, ValueError):
            return None
        if not is_commit(commit):
            return None
    top = folder(root, reference.repo, commit)
    return names.listing(commit, _files(top)) if top.is_dir() else None


def find(root: Path, reference: HubReference) -> Path | None:
    """The model that `reference` means, if all of its files are there.

    Of several that it may mean, `HubChoiceNeeded` is raised as it would be with a network.
    """
    held = cached(root, reference)
    if held is None:
        return None
    top = folder(root, reference.repo, held.commit)
    try:
        found = gguf.models(held.files)
        if found or reference.selector is not None:
            return top / gguf.pick(reference, found).name
        wanted = safetensors.fixed_files(reference.repo, held)
        if safetensors.INDEX in wanted:
            safetensors.shards(reference.repo, held, (top / safetensors.INDEX).read_bytes())
    except (HubFileMissing, HubModelMissing, PickleRefused, OSError):
        return None
    return top


def remember(root: Path, reference: HubReference, commit: str) -> None:
    """Records which commit the revision stands for, so that it is found without a network.

    Files are fetched by commit, lest a push in between mix two revisions; `huggingface_hub` then records
    nothing itself.
    """
    file = _storage(root, reference.repo) / "refs" / reference.revision
    try:
        if file.is_file() and file.read_text().strip() == commit:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{file.name}.{os.getpid()}.partial")
        beside.write_text(commit)  # with the user's own file mode: the cache may be shared
        os.replace(beside, file)
    except (OSError, ValueError) as error:
        _log.debug("the revision %s of %s is not remembered: %s", reference.revision, reference.repo, error)


def _storage(root: Path, repo: str) -> Path:
    return root / f"models--{repo.replace('/', '--')}"


def _files(top: Path) -> list[RepoFile]:
    found: list[RepoFile] = []
    for parent, _, entries in os.walk(top):
        for entry in entries:
            path = Path(parent, entry)
            # A link whose blob is gone is no file.
            if path.is_file():
                found.append(RepoFile(path.relative_to(top).as_posix(), path.stat().st_size))
    return found
