"""Hugging Face through its own client, with its own cache, tokens, proxies and settings."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from ostinato.errors.huggingface import HubUnreachable
from ostinato.host.version import __version__
from ostinato.hub import progress
from ostinato.hub.hf import failures, names
from ostinato.hub.hf.names import Listing, RepoFile
from ostinato.hub.hf.reference import HubReference, is_commit


def cache_root() -> Path:
    """The folder of Hugging Face's cache, which HF_HOME and HF_HUB_CACHE name."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser().absolute()


def offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids the network."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def patience() -> float:
    """Seconds that Hugging Face has for an answer: HF_HUB_ETAG_TIMEOUT."""
    from huggingface_hub import constants

    return float(constants.HF_HUB_ETAG_TIMEOUT)


def list_files(reference: HubReference, timeout: float) -> Listing:
    """The files of the reference's repository at its revision, with their sizes; one question.

    Raises what `failures.explain` makes of a failure.
    """
    with _settings(wanted_progress=False):
        from huggingface_hub import HfApi

        api = HfApi(library_name="ostinato", library_version=__version__)
        try:
            info = api.model_info(
                reference.repo, revision=reference.revision, files_metadata=True, timeout=timeout
            )
            found = [RepoFile(file.rfilename, file.size) for file in info.siblings or ()]
        except Exception as error:
            raise failures.explain(error, reference, where=cache_root()) from None
    commit = info.sha
    if not (isinstance(commit, str) and is_commit(commit)):
        # It becomes the name of a folder.
        raise HubUnreachable(reference.text, "the answer names no commit")
    return names.listing(commit, found)


def fetch(reference: HubReference, commit: str, name: str, *, wanted_progress: bool) -> None:
    """Brings one file into the cache. Raises what `failures.explain` makes of a failure."""
    with _settings(wanted_progress):
        from huggingface_hub import hf_hub_download

        try:
            hf_hub_download(
                reference.repo,
                name,
                revision=commit,
                library_name="ostinato",
                library_version=__version__,
            )
        except Exception as error:
            raise failures.explain(error, reference, where=cache_root(), file=name) from None


@contextlib.contextmanager
def _settings(wanted_progress: bool) -> Iterator[None]:
    """No telemetry, no bars and warnings for those who do not watch, no credentials in what is logged."""
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    constants.HF_HUB_DISABLE_TELEMETRY = True  # never switched back: that would race with other threads
    watched = progress.watched(wanted_progress)
    # HF_HUB_DISABLE_PROGRESS_BARS, when set, is the user's word, and the client keeps to it.
    hushed = not watched and constants.HF_HUB_DISABLE_PROGRESS_BARS is None
    hushed = hushed and not are_progress_bars_disabled()
    handlers = tuple(logging.getLogger("huggingface_hub").handlers)
    scrubbing = _Scrubbing(watched)
    for handler in handlers:
        handler.addFilter(scrubbing)
    if hushed:
        disable_progress_bars()
    try:
        yield
    finally:
        if hushed:
            enable_progress_bars()
        for handler in handlers:
            handler.removeFilter(scrubbing)


class _Scrubbing(logging.Filter):
    """Lets the client's log lines through without credentials; its warnings only to those who watch."""

    def __init__(self, watched: bool) -> None:
        super().__init__()
        self._least = logging.WARNING if watched else logging.ERROR

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = failures.clean(record.getMessage()), ()
        return record.levelno >= self._least
