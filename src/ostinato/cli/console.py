"""What goes where: answers to stdout, everything else to stderr."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from ostinato.errors import OstinatoError

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass
class Console:
    """How much to say. `verbosity`: -1 quiet, 0 normal, 1 verbose; `debug` shows tracebacks."""

    verbosity: int = 0
    debug: bool = False

    def note(self, text: str, *, level: int = 0) -> None:
        """One dim line on stderr, where the verbosity allows it."""
        if self.verbosity >= level:
            _say(click.style(text, dim=True))

    def error(self, error: BaseException) -> None:
        """What went wrong and what to do about it, on stderr."""
        if self.debug:
            traceback.print_exception(error, file=sys.stderr)
        message, remedy = _explained(error)
        _say(f"{click.style('Error:', fg='red', bold=True)} {message}")
        if remedy:
            _say(f"  {remedy}")


def console_options(command: _Command) -> _Command:
    """-q, -v and --debug. The group and its commands all have them: people type them in either place."""
    # A decorator applied first stands last in --help.
    for names, changes, text in (
        (["--debug"], {"debug": True}, "Tracebacks and log lines."),
        (["-v", "--verbose"], {"verbosity": 1}, "Say what is being done."),
        (["-q", "--quiet"], {"verbosity": -1}, "Only the answer, and errors."),
    ):
        option = click.option(*names, is_flag=True, expose_value=False, callback=_on(**changes), help=text)
        command = option(command)
    return command


def prepare_stdout() -> None:
    """Whatever the locale, an answer comes out as UTF-8; where there is no stdout, nowhere."""
    if sys.stdout is None:  # the shell's >&-
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  it lives as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")


def abandon_stdout() -> None:
    """Let what stdout can't take go nowhere, so that the flush at exit stays silent."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _on(**changes: Any) -> Callable[[click.Context, click.Parameter, bool], None]:
    """A flag that, where it stands, changes the Console; where it doesn't, leaves what was said before."""

    def callback(context: click.Context, param: click.Parameter, given: bool) -> None:
        if given:
            console = context.ensure_object(Console)
            for name, value in changes.items():
                setattr(console, name, value)
            if console.debug:
                _log_to_stderr()

    return callback


def _explained(error: BaseException) -> tuple[str, str]:
    """(what happened, what to do about it)."""
    if isinstance(error, OstinatoError):
        return str(error), error.remedy
    if isinstance(error, OSError):  # the machine's word: a full disk, a file that may not be read
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror or error}", ""
    return f"{type(error).__name__}: {error}", "This is a fault of ostinato; --debug shows where."


def _say(text: str) -> None:
    # NO_COLOR (https://no-color.org); otherwise click goes by the terminal.
    click.echo(text, err=True, color=False if os.environ.get("NO_COLOR") else None)


def _log_to_stderr() -> None:
    """Show the library's log lines."""
    logger = logging.getLogger("ostinato")
    if not any(isinstance(handler, logging.StreamHandler) for handler in logger.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
