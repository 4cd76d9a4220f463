"""`ostinato cache`: the compiled code that a second start finds again."""

from __future__ import annotations

import json
import time

import click

from ostinato.cli.console import Console, console_options
from ostinato.errors.host import CacheNotWritable


@click.group()
@console_options
def cache() -> None:
    """Look into and empty the cache of compiled code."""


@cache.command()
@console_options
def path() -> None:
    """Print the folder."""
    from ostinato.devices.cpu.code_cache import CodeCache

    click.echo(CodeCache.of_user().folder)


@cache.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@console_options
def show(as_json: bool) -> None:
    """What is kept, when it was last used, and how much room it takes."""
    from ostinato.devices.cpu.code_cache import CodeCache

    code = CodeCache.of_user()
    entries, doubt, now = code.entries()[::-1], code.doubt(), time.time()
    total = sum(entry.nbytes for entry in entries)
    if as_json:
        rows = [{"key": entry.key, "bytes": entry.nbytes, "last_used": entry.used} for entry in entries]
        report = {"path": str(code.folder), "entries": rows, "bytes": total, "cap": code.max_bytes,
                  "not_used_because": doubt or None}  # fmt: skip
        click.echo(json.dumps(report, indent=2, ensure_ascii=False))
        return
    click.echo(f"{code.folder}: {_counted(len(entries))}, {_size(total)} of {_size(code.max_bytes)}")
    if doubt:
        click.echo(f"not used: {doubt}")
    if entries:
        click.echo(f"{'entry':<12} {'size':>12}  last used")
    for entry in entries:
        click.echo(f"{entry.key[:12]} {_size(entry.nbytes):>12}  {_ago(now - entry.used)}")


@cache.command()
@console_options
@click.pass_obj
def clear(console: Console) -> None:
    """Remove every entry; the next start compiles again."""
    from ostinato.devices.cpu.code_cache import CodeCache

    code = CodeCache.of_user()
    try:
        removed = code.clear()
    except OSError as error:
        raise CacheNotWritable(str(code.folder), error.strerror or str(error)) from error
    freed = sum(entry.nbytes for entry in removed)
    console.note(f"removed {_counted(len(removed))} ({_size(freed)}) from {code.folder}")


def _counted(entries: int) -> str:
    return "1 entry" if entries == 1 else f"{entries} entries"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def _ago(seconds: float) -> str:
    """The largest unit that is at least one."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"
