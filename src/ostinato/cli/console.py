"""What goes where: answers to stdout, everything else to stderr."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from dataclasses import dataclass

import click

from ostinato.errors import OstinatoError


@dataclass
class Console:
    """How much to say. `verbosity`: -1 quiet, 0 normal, 1 verbose; `debug` shows tracebacks."""

    verbosity: int = 0
    debug: bool = False

    def note(self, text: str, *, level: int = 0) -> None:
        """One dim line on stderr, where the verbosity allows it."""
        if self.verbosity >= level:
            click.echo(click.style(text, dim=True), err=True, color=color())

    def error(self, error: BaseException) -> None:
        """What went wrong and what to do about it, on stderr."""
        if self.debug:
            traceback.print_exception(error, file=sys.stderr)
            return
        prefix = click.style("error:", fg="red", bold=True)
        if isinstance(error, OstinatoError):
            click.echo(f"{prefix} {error}", err=True, color=color())
            if error.remedy:
                click.echo(f"  {error.remedy}", err=True, color=color())
        else:
            text = f"{prefix} {type(error).__name__}: {error}\n  This is a fault of ostinato; --debug shows where."
            click.echo(text, err=True, color=color())


def color() -> bool | None:
    """False where NO_COLOR (https://no-color.org) asks for it, else click's choice by terminal."""
    return False if os.environ.get("NO_COLOR") else None


def log_to_stderr() -> None:
    """Show the library's log lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger = logging.getLogger("ostinato")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
