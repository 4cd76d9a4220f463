"""The command group, its common options, and what an exit code means."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from ostinato.cli.completion import completion
from ostinato.cli.console import Console, log_to_stderr
from ostinato.cli.models import models
from ostinato.cli.run import run
from ostinato.host.version import __version__

USAGE, INTERRUPTED = 2, 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="ostinato")
@click.option("-q", "--quiet", is_flag=True, help="Only the answer, and errors.")
@click.option("-v", "--verbose", is_flag=True, help="Say what is being done.")
@click.option("--debug", is_flag=True, help="Tracebacks and log lines.")
@click.pass_context
def cli(context: click.Context, quiet: bool, verbose: bool, debug: bool) -> None:
    """Run language models on this machine."""
    console = context.ensure_object(Console)
    console.verbosity = -1 if quiet else int(verbose)
    console.debug = debug
    if debug:
        log_to_stderr()


cli.add_command(run)
cli.add_command(models)
cli.add_command(completion)


def run_app(argv: Sequence[str] | None) -> int:
    """Run the group and turn whatever ends it into an exit code."""
    console = Console()
    try:
        result = cli.main(args=list(argv) if argv is not None else None, standalone_mode=False, obj=console)
        sys.stdout.flush()
        return int(result or 0)
    except click.ClickException as error:
        error.show()
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has what it wanted. stdout is pointed elsewhere so that the flush at exit stays silent.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the last stop: anything that is no OstinatoError is a fault of ours
        console.error(error)
        return 1
