"""What went wrong with Hugging Face, as typed errors."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

from ostinato.errors.base import OstinatoError
from ostinato.errors.huggingface import (
    HubAccessDenied,
    HubCacheNotWritable,
    HubDiskFull,
    HubDownloadFailed,
    HubFileMissing,
    HubRateLimited,
    HubRepositoryMissing,
    HubRevisionMissing,
    HubUnreachable,
)
from ostinato.hub.hf.reference import HubReference
from ostinato.hub.scrub import scrub

_FULL = {errno.ENOSPC, errno.EDQUOT}
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}


def explain(
    error: Exception, reference: HubReference, *, where: Path, file: str | None = None
) -> OstinatoError:
    """The typed error for what the client raised while it asked for `file`, or for the list of files.

    `where` is its cache.
    """
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # the client wraps what came of its question
    response: Any = getattr(error, "response", None)
    status: int | None = getattr(response, "status_code", None)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return HubUnreachable(reference.text, "the network is forbidden", offline=True)
    if isinstance(error, errors.RevisionNotFoundError):
        return HubRevisionMissing(reference.repo, reference.revision)
    if isinstance(error, errors.EntryNotFoundError) and file is not None and status == 404:
        return HubFileMissing(reference.repo, file)
    if status in {401, 403}:
        return explain_denial(error, reference)
    if status == 404:
        return HubRepositoryMissing(reference.repo)
    if status == 429:
        return HubRateLimited(reference.repo, _wait(response.headers), token_sent=_token() is not None)
    if status is None and isinstance(error, OSError) and error.errno is not None:
        return _explain_system(error, reference, where, file)
    reason = f"HTTP status {status}" if status is not None else clean(f"{type(error).__name__}: {error}")
    return _broken(reference, file, reason)


def explain_denial(error: Exception, reference: HubReference) -> OstinatoError:
    """Says why access was refused: statuses 401 and 403 stand for four different causes."""
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    detail = clean(str(getattr(error, "server_message", None) or ""))
    if isinstance(error, errors.GatedRepoError):
        reason = "gated"
    elif status == 401 and isinstance(error, errors.RepositoryNotFoundError):
        reason, detail = "private", ""
    else:
        reason = "token" if status == 401 else "forbidden"
    return HubAccessDenied(reference.repo, reason, _token() is not None, detail)


def clean(text: str) -> str:
    """`text` without credentials, the token that the client keeps in a file included."""
    return scrub(text, {**os.environ, "HF_TOKEN": _token() or ""})


def _explain_system(error: OSError, reference: HubReference, where: Path, file: str | None) -> OstinatoError:
    reason = clean(error.strerror or str(error))
    if error.errno in _FULL:
        free = 0
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(where).free
        return HubDiskFull(str(where), free + 1, free)
    if error.errno in _NOT_WRITABLE and error.filename is not None:
        return HubCacheNotWritable(str(where), reason)
    return _broken(reference, file, reason)


def _broken(reference: HubReference, file: str | None, reason: str) -> OstinatoError:
    if file is None:
        return HubUnreachable(reference.text, reason)
    return HubDownloadFailed(reference.repo, file, reason)


def _token() -> str | None:
    from huggingface_hub import get_token

    with contextlib.suppress(Exception):  # a stored login may have to be renewed over the network first
        return get_token()
    return None


def _wait(headers: Any) -> int | None:
    """Seconds until Hugging Face answers again: `Retry-After`, or `t` of the draft header `RateLimit`."""
    match = re.search(r"\bt\s*=\s*(\d{1,6})\b", headers.get("ratelimit") or "")
    text = headers.get("retry-after") or (match[1] if match else "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else None
