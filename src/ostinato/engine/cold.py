"""Cold starts: a process of its own, from nothing to the first token."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ostinato.errors.generate import StartFailed

PROMPT = "An ostinato is"


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Seconds since the process was asked for: until its first output, which is the first token, and until it
    was gone."""

    first_token: float
    whole: float


def cold_start(model: Path, options: Sequence[str] = ()) -> ColdStart:
    """Run `python -m ostinato run` for one token, with such options beside. Raises StartFailed."""
    command = [
        sys.executable, "-m", "ostinato", "run", "-q", "--raw", "--max-tokens", "1", "--temperature", "0",
        "-m", str(model), *options, PROMPT,
    ]  # fmt: skip
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        first = time.perf_counter() - began
        _, complaint = process.communicate()
    whole = time.perf_counter() - began
    if process.returncode:
        raise StartFailed(process.returncode, complaint.decode(errors="replace").strip())
    return ColdStart(first, whole)
