"""`ostinato completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    For bash, put  eval "$(ostinato completion bash)"  into ~/.bashrc.
    """
    complete = get_completion_class(shell)
    assert complete is not None
    root = context.find_root().command
    click.echo(complete(root, {}, "ostinato", "_OSTINATO_COMPLETE").source())
