"""Shell completion: the scripts, and what they get when they ask."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import COMMAND

Shell = Callable[..., Any]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(cli: Shell, name: str) -> None:
    ran = cli("completion", name)
    assert ran.code == 0
    assert f"_OSTINATO_COMPLETE={name}_complete" in ran.out
    if shutil.which(name):
        subprocess.run([name, "-n"], input=ran.out.encode(), check=True)


def test_another_shell_is_wrong_usage(cli: Shell) -> None:
    ran = cli("completion", "tcsh")
    assert (ran.code, ran.out) == (2, "")
    assert "zsh" in ran.err


def asked(shell: Shell, kind: str, words: str, at: int | str) -> list[str]:
    ran = shell(_OSTINATO_COMPLETE=f"{kind}_complete", COMP_WORDS=words, COMP_CWORD=str(at))
    assert ran.code == 0, ran.err
    return str(ran.out).split()


def test_what_bash_is_answered(shell: Shell) -> None:
    commands = ["bench", "cache", "completion", "doctor", "models", "plan", "run"]
    assert asked(shell, "bash", "ostinato ", 1) == [f"plain,{command}" for command in commands]
    assert "plain,--max-tokens" in asked(shell, "bash", "ostinato run --m", 2)
    assert "plain,--quiet" in asked(shell, "bash", "ostinato run --q", 2)
    assert asked(shell, "bash", "ostinato run -m smo", 3) == ["plain,smollm2"]
    assert asked(shell, "bash", "ostinato run -m ./", 3) == ["file,./"]
    assert asked(shell, "bash", "ostinato run --kv-dtype f", 3) == ["plain,f16", "plain,f32"]
    assert asked(shell, "bash", "ostinato models in", 2) == ["plain,inspect"]
    assert asked(shell, "bash", "ostinato models pull s", 3) == ["plain,smollm2"]


def test_what_zsh_and_fish_are_answered(shell: Shell) -> None:
    assert asked(shell, "zsh", "ostinato run -m smo", 3)[:2] == ["plain", "smollm2"]
    assert "smollm2" in " ".join(asked(shell, "fish", "ostinato run -m ", "smo"))


def test_bash_completes(shell: Shell, tmp_path: Path) -> None:
    """The script at work in a bash: what Tab would offer."""
    command = tmp_path / "ostinato"
    quoted = " ".join(f"'{part}'" for part in COMMAND)
    command.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(ostinato completion bash)" && complete -p ostinato >&2 && '
        "COMP_WORDS=(ostinato run -m smo); COMP_CWORD=3; "
        '_ostinato_completion ostinato; echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split()[0] == "smollm2"
    assert "_ostinato_completion" in done.stderr
