"""Model files are known by their SHA-256, whatever brought them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ostinato.errors.hub import ChecksumMismatch
from ostinato.host import atomic
from ostinato.hub.aliases import Alias

_CHUNK = 1 << 20


def matches(path: Path, alias: Alias) -> bool:
    """Whether the file is the alias's, by its bytes. Raises `OSError` when it cannot be read."""
    # A cheap no: another size is another file.
    if path.stat().st_size != alias.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == alias.sha256


def copy_verified(
    source: IO[bytes], target: Path, alias: Alias, origin: str, on_bytes: Callable[[int], None]
) -> None:
    """Copies `source` to `target`, hashing on the way: `target` becomes the alias's very file, or stays.

    `on_bytes` is told the bytes copied so far. Raises `ChecksumMismatch` naming `origin`, or `OSError`.
    """
    digest = hashlib.sha256()
    copied = 0
    with atomic.replacing(target) as file:
        # One byte more than expected is enough to know better, and bounds what a hostile archive can unpack.
        while copied <= alias.size and (chunk := source.read(min(_CHUNK, alias.size + 1 - copied))):
            digest.update(chunk)
            file.write(chunk)
            copied += len(chunk)
            on_bytes(copied)
        require_sha256(digest.hexdigest(), alias, origin)


def require_sha256(actual: str, alias: Alias, origin: str) -> None:
    """The guard of everything that enters the cache; raises `ChecksumMismatch`."""
    if actual != alias.sha256:
        raise ChecksumMismatch(reference=alias.name, source=origin, expected=alias.sha256, actual=actual)
