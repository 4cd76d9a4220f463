"""The memory of a verification: a file hashed once is not hashed again until its size or time changes."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ostinato.host import atomic

_log = logging.getLogger("ostinato.hub")


@dataclass(frozen=True, slots=True)
class Marker:
    """The file at `path`, which `source` brought, had this `sha256` when it had this size and time."""

    path: str
    size: int
    mtime_ns: int
    sha256: str
    source: str

    @classmethod
    def of(cls, path: Path, stat: os.stat_result, sha256: str, source: str) -> Self:
        """`stat` must be from before the hashing, so that a change meanwhile is noticed later."""
        return cls(str(path), stat.st_size, stat.st_mtime_ns, sha256, source)

    def holds_for(self, path: Path) -> bool:
        """Whether `path` is the file that was verified, untouched since."""
        try:
            stat = path.stat()
        except OSError:
            return False
        return (self.path, self.size, self.mtime_ns) == (str(path), stat.st_size, stat.st_mtime_ns)


def load(file: Path) -> Marker | None:
    """The marker in `file`, or None when there is none that can be read."""
    try:
        values = json.loads(file.read_bytes())
        if not isinstance(values, dict):
            return None
        marker = Marker(**values)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    well_typed = all(
        type(getattr(marker, name)) is kind
        for name, kind in (("path", str), ("size", int), ("mtime_ns", int), ("sha256", str), ("source", str))
    )
    return marker if well_typed else None


def store(file: Path, marker: Marker) -> None:
    """Writes the marker, if the folder lets us: without it the next start hashes again, no worse."""
    try:
        atomic.write_text(file, json.dumps(dataclasses.asdict(marker), indent=1))
    except OSError as error:
        _log.debug("verification of %s is not remembered: %s", marker.path, error)
