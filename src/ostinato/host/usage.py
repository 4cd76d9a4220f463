"""How much memory this process takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ostinato.host import cgroup

_SYSTEM = Path("/")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes in memory now: the process's own (`anonymous`), and pages of files that it has mapped (`files`:
    programs, libraries, models), which the system can drop. `peak`: the most of both together so far."""

    anonymous: int
    files: int
    peak: int


def memory_use(root: Path = _SYSTEM) -> MemoryUse | None:
    """Of this process, by `/proc/self/status` (proc_pid_status(5)); None where the system doesn't tell."""
    rows: dict[str, int] = {}
    for line in (cgroup.read_text(root / "proc/self/status") or "").splitlines():
        words = line.split()  # "VmHWM:   12345 kB"
        if len(words) == 3 and words[1].isdigit():
            rows[words[0]] = int(words[1]) * 1024
    try:
        return MemoryUse(rows["RssAnon:"], rows["RssFile:"] + rows.get("RssShmem:", 0), rows["VmHWM:"])
    except KeyError:
        return None
