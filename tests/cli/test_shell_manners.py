"""What only a real process shows: pipes, signals, terminals, the environment."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import COMMAND, ENDLESS, GREEDY, TINY

Shell = Callable[..., Any]
needs_dev_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


def spawn(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    streams = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen([*COMMAND, *arguments], preexec_fn=heed_sigint, **streams | options)


def heed_sigint() -> None:
    """Tests that run in the background of a shell have SIGINT ignored, and so would their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def until(file: int, wanted: Callable[[bytes], bool], seconds: float = 60) -> bytes:
    """What comes until `wanted` is true of it, or until the end."""
    got, deadline = b"", time.monotonic() + seconds
    while not wanted(got):
        ready, _, _ = select.select([file], [], [], deadline - time.monotonic())
        assert ready, f"nothing more after {got!r}"
        try:
            data = os.read(file, 4096)
        except OSError:  # how Linux says that a terminal's other side is closed
            break
        if not data:
            break
        got += data
    return got


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cache folder for all processes of this file: the first compiles the kernels for the others."""
    return str(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(autouse=True)
def _shared_cache(_own_world: None, compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_CACHE_DIR", compiled)


# Streams


def test_an_answer_and_nothing_else(shell: Shell) -> None:
    ran = shell("run", "-m", TINY, "--seed", "1", "hi")
    assert ran.code == 0
    assert ran.summary.endswith(" tok/s")
    assert len(ran.err.splitlines()) == 1
    assert "tok/s" not in ran.out
    quiet = shell("run", "-q", "-m", TINY, "--seed", "1", "hi")
    assert (quiet.code, quiet.out, quiet.err) == (0, ran.out, "")


def test_text_comes_while_it_is_generated() -> None:
    process = spawn("run", *ENDLESS, "hi", stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert until(process.stdout.fileno(), lambda got: len(got) >= 3)
    assert process.poll() is None  # it goes on
    process.kill()
    process.communicate()


def test_a_locale_without_utf8_changes_nothing(shell: Shell) -> None:
    here = shell("run", "-m", TINY, "--seed", "3", "é")
    other = shell("run", "-m", TINY, "--seed", "3", "é", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert other.code == 0
    assert other.out == here.out
    assert "\ufffd" in here.out


def test_bytes_in_the_prompt_that_are_no_text() -> None:
    done = subprocess.run(
        [*COMMAND, "run", "-m", TINY, b"a\xff"], input=b"", capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_stdin_and_prompt(shell: Shell) -> None:
    options = ("run", "-m", TINY, "--temperature", "0", "--max-tokens", "9")
    joined = shell(*options, "hi", stdin=b"you\n")
    assert joined.code == 0
    assert joined.out == shell(*options, "-", stdin=b"hi\n\nyou").out == shell(*options, "hi\n\nyou").out


# Pipes that close, disks that are full


@pytest.mark.parametrize("reader", ["head -c 5", "true"])
def test_quiet_on_a_closed_pipe(reader: str, tmp_path: Path) -> None:
    pipeline = 'set -o pipefail; "$0" "$@" 2>err | ' + reader + " >out"
    script = ["bash", "-c", pipeline, *COMMAND, "run", *ENDLESS, "hi"]
    done = subprocess.run(script, stdin=subprocess.DEVNULL, cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 0
    assert (tmp_path / "err").read_text().splitlines()[1:] == []  # the note about the context came before
    assert "Error" not in (tmp_path / "err").read_text()
    assert len((tmp_path / "out").read_bytes()) == (5 if reader.startswith("head") else 0)


def test_a_listing_into_a_closed_pipe() -> None:
    pipeline = 'set -o pipefail; "$0" "$@" | true'
    for arguments in (["models", "inspect", TINY], ["models", "list"], ["completion", "bash"]):
        done = subprocess.run(
            ["bash", "-c", pipeline, *COMMAND, *arguments], capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, b""), arguments


@needs_dev_full
@pytest.mark.parametrize("arguments", [["run", *GREEDY, "hi"], ["models", "inspect", TINY]])
def test_a_full_disk_is_the_disks_fault(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        process = spawn(*arguments, stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.decode() == "Error: No space left on device\n"


def test_without_any_stdout_or_stdin() -> None:
    script = '"$0" "$@" <&- >&-'
    done = subprocess.run(
        ["bash", "-c", script, *COMMAND, "run", "-m", TINY, "hi"], capture_output=True, check=False
    )
    assert done.returncode == 0
    assert done.stderr.decode().endswith("tok/s\n")


# Ctrl-C


def interrupted(*arguments: str) -> tuple[int, str, str]:
    process = spawn("run", *ENDLESS, *arguments, "hi", stdout=subprocess.PIPE)
    assert process.stdout is not None
    start = until(process.stdout.fileno(), lambda got: len(got) >= 20)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    return process.returncode, (start + rest).decode(), err.decode()


def test_ctrl_c_keeps_what_was_generated(shell: Shell) -> None:
    code, out, err = interrupted()
    assert code == 130
    said = re.match(r"\d+ prompt tokens · (\d+) generated \(interrupted\) · .* tok/s$", err.splitlines()[-1])
    assert said is not None
    assert "Traceback" not in err
    whole = shell("run", *ENDLESS, "--max-tokens", said[1], "hi").out
    assert out.endswith("\n")
    assert whole.startswith(out.rstrip("\n"))
    assert len(whole) - len(out) <= 3  # at most the character that was not complete


def test_ctrl_c_quietly() -> None:
    code, out, err = interrupted("-q")
    assert (code, err) == (130, "")
    assert out.endswith("\n")


def test_ctrl_c_before_the_first_token() -> None:
    """In the middle of the prompt, made certain by a forward that sends the signal itself."""
    prelude = (
        "import os, signal; from ostinato.engine import token_loop; "
        "token_loop.run_step = lambda *a, **k: os.kill(os.getpid(), signal.SIGINT)"
    )
    ran = sabotaged(prelude, "run", "-m", TINY, "--temperature", "0", "hi")
    assert (ran.returncode, ran.stdout) == (130, b"")
    assert ran.stderr.decode() == "21 prompt tokens · 0 generated (interrupted) · 0.0 tok/s\n"


def sabotaged(prelude: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    program = f"{prelude}; {COMMAND[2]}"
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | options
    command = [COMMAND[0], "-c", program, *arguments]
    return subprocess.run(command, timeout=60, check=False, preexec_fn=heed_sigint, **streams)


@needs_dev_full
def test_sabotage_abandoned_stdout() -> None:
    """Without the guard, the flush at exit complains about the full disk once more."""
    prelude = "from ostinato.cli import app; app.abandon_stdout = lambda: None"
    with open("/dev/full", "w") as full:
        ran = sabotaged(prelude, "models", "inspect", TINY, stdout=full)
    assert b"Exception ignored" in ran.stderr


def test_sabotage_prepared_stdout() -> None:
    prelude = "from ostinato.cli import app; app.prepare_stdout = lambda: None"
    ran = sabotaged(
        prelude, "run", "-m", TINY, "--seed", "3", "hi", env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert ran.returncode == 1
    assert b"UnicodeEncodeError" in ran.stderr


# Terminals


def on_terminal(
    *arguments: str, typed: bytes = b"", environment: dict[str, str] | None = None
) -> tuple[int, bytes, bytes]:
    """Run with stdin and stderr on a terminal, and what came on stdout and on the terminal."""
    ours, theirs = pty.openpty()
    process = spawn(
        *arguments, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, start_new_session=True,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    os.close(theirs)
    if typed:
        os.write(ours, typed)
    shown = until(ours, lambda _: False)
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    return process.returncode, out, shown


def test_no_prompt_on_a_terminal_is_wrong_usage() -> None:
    code, out, shown = on_terminal("run", "-m", TINY)
    assert (code, out) == (2, b"")
    assert b"give a PROMPT, or pipe text to stdin" in shown
    assert b"ostinato run --help" in shown


def test_a_prompt_on_a_terminal_does_not_wait_for_stdin() -> None:
    code, out, shown = on_terminal("run", *GREEDY, "hi")
    assert code == 0
    assert out
    assert b"tok/s" in shown


def test_a_dash_on_a_terminal_reads_what_is_typed(shell: Shell) -> None:
    options = ("run", "-m", TINY, "--temperature", "0")
    code, out, _ = on_terminal(*options, "-", typed=b"hi\n\x04")
    assert code == 0
    assert out.decode() == shell(*options, "hi").out


def test_colour_on_a_terminal_unless_no_color() -> None:
    for arguments, dim in (
        (["run", "-m", TINY, "hi"], b"\x1b[2m"),
        (["run", "-m", "nosuch", "x"], b"\x1b[31m"),
    ):
        shown = [on_terminal(*arguments, environment=env)[2] for env in ({}, {"NO_COLOR": "1"})]
        assert dim in shown[0]
        assert b"\x1b" not in shown[1]


# The environment, the first argument


@pytest.mark.parametrize(("threads", "code"), [("1", 0), ("", 0), ("abc", 2), ("0", 2), ("-1", 2)])
def test_threads_from_the_environment(shell: Shell, threads: str, code: int) -> None:
    ran = shell("run", "-m", TINY, "--max-tokens", "2", "hi", OSTINATO_THREADS=threads)
    assert ran.code == code
    assert ("OSTINATO_THREADS" in ran.err) == (code == 2)
    assert "Traceback" not in ran.err


def test_threads_asked_for_beat_the_environment(shell: Shell) -> None:
    assert (
        shell("run", "-m", TINY, "--threads", "1", "--max-tokens", "1", "hi", OSTINATO_THREADS="abc").code
        == 0
    )


@pytest.mark.parametrize(("arguments", "code", "text"), [
    (["--version"], 0, "ostinato, version "),
    (["--help"], 0, "Run language models on this machine."),
    (["run", "-h"], 0, "--max-tokens"),
    ([], 2, ""),
    (["nosuch"], 2, ""),
])  # fmt: skip
def test_first_things_people_type(shell: Shell, arguments: list[str], code: int, text: str) -> None:
    ran = shell(*arguments)
    assert ran.code == code
    assert text in ran.out
    assert bool(ran.err) == (code != 0)


def test_help_and_version_load_no_numpy() -> None:
    program = "import sys; from ostinato.cli import main; main(['--version']); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


@pytest.mark.skipif(not (Path(sys.executable).parent / "ostinato").exists(), reason="not installed")
def test_the_installed_command() -> None:
    command = Path(sys.executable).parent / "ostinato"
    done = subprocess.run([command, "run", "-q", *GREEDY, "hi"], input=b"", capture_output=True, check=True)
    assert done.stdout
