"""The command group, and what an exit code means."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from ostinato.cli.bench import bench
from ostinato.cli.cache import cache
from ostinato.cli.completion import completion
from ostinato.cli.console import Console, abandon_stdout, console_options, prepare_stdout
from ostinato.cli.doctor import doctor
from ostinato.cli.models import models
from ostinato.cli.plan import plan
from ostinato.cli.run import run
from ostinato.errors.generate import InvalidSetting
from ostinato.host.version import __version__

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


class _Commands(click.Group):
    def invoke(self, context: click.Context) -> Any:
        try:
            result = super().invoke(context)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has what it wanted. Handled here because click would make an error of it.
            abandon_stdout()
            return DONE
        return result


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="ostinato")
@console_options
def cli() -> None:
    """Run language models on this machine."""


cli.add_command(run)
cli.add_command(models)
cli.add_command(plan)
cli.add_command(bench)
cli.add_command(cache)
cli.add_command(doctor)
cli.add_command(completion)


def run_app(argv: Sequence[str] | None) -> int:
    """Run the group and turn whatever ends it into an exit code."""
    console = Console()
    try:
        prepare_stdout()
        return cli.main(args=argv, prog_name="ostinato", standalone_mode=False, obj=console) or DONE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:
        console.error(error)
        if isinstance(error, OSError) and not _flushes():
            abandon_stdout()
        return USAGE if isinstance(error, InvalidSetting) else FAILED


def _flushes() -> bool:
    try:
        sys.stdout.flush()
    except OSError:
        return False
    return True
