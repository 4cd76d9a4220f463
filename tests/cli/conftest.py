"""The command as a person's shell runs it, and in this process where that is enough."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from commandline import COMMAND

from ostinato.cli import main


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def summary(self) -> str:
        """The quiet line: the last on stderr."""
        return self.err.splitlines()[-1]


@pytest.fixture(autouse=True)
def _own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, an empty cache, and nothing of the developer's own settings."""
    for name in ("NO_COLOR", "FORCE_COLOR", "OSTINATO_THREADS", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OSTINATO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OSTINATO_OFFLINE", "1")


@pytest.fixture
def shell() -> Callable[..., Ran]:
    """Run the command as a process of its own."""

    def run(*arguments: str, stdin: bytes = b"", **environment: str) -> Ran:
        done = subprocess.run(
            [*COMMAND, *arguments], input=stdin, capture_output=True, timeout=60,
            env={**os.environ, **environment}, check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run the command in this process; without `stdin` there is a terminal."""

    def run(*arguments: str, stdin: bytes | None = None) -> Ran:
        kind = _Terminal if stdin is None else io.TextIOWrapper
        monkeypatch.setattr(sys, "stdin", kind(io.BytesIO(stdin or b"")))
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
        texts = []
        for stream in (out, err):
            stream.flush()
            texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
        return Ran(code, *texts)

    return run
