"""What this machine is called."""

from __future__ import annotations

import platform
from pathlib import Path

from ostinato.host import cgroup

_SYSTEM = Path("/")


def cpu_name(root: Path = _SYSTEM) -> str:
    """The processor's name, as `/proc/cpuinfo` has it; the architecture where it tells none."""
    for line in (cgroup.read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()
