"""The `ostinato` command. Only this layer prints, reads stdin and exits."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.host.collector import Starting


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 an error, 2 wrong usage, 130 interrupted."""
    try:
        with Starting():
            from ostinato.cli.app import run_app
    except KeyboardInterrupt:  # importing takes long enough to be interrupted
        return 130
    return run_app(argv)
