"""`ostinato cache`: what the next start finds again, compiled code and packed weights."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from ostinato.cli.console import Console, console_options
from ostinato.errors.host import CacheNotWritable

if TYPE_CHECKING:
    from ostinato.host.kept import KeptFiles

KINDS = ("code", "packed")

_kind = click.argument("kind", type=click.Choice(KINDS), required=False, metavar="[code|packed]")


@click.group()
@console_options
def cache() -> None:
    """Look into and empty the caches: compiled code, and packed weights (--pack-cache)."""


@cache.command()
@_kind
@console_options
def path(kind: str | None) -> None:
    """Print the folders, a line each."""
    for kept in _caches(kind).values():
        click.echo(kept.folder)


@cache.command()
@_kind
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@console_options
def show(kind: str | None, as_json: bool) -> None:
    """What is kept, when it was last used, and how much room it takes."""
    caches = _caches(kind)
    if as_json:
        report = {name: _report(kept) for name, kept in caches.items()}
        click.echo(json.dumps(report, indent=2, ensure_ascii=False))
        return
    for kept in caches.values():
        _show(kept)


@cache.command()
@_kind
@console_options
@click.pass_obj
def clear(console: Console, kind: str | None) -> None:
    """Remove every entry; the next start compiles, and packs, again."""
    for kept in _caches(kind).values():
        try:
            removed = kept.clear()
        except OSError as error:
            raise CacheNotWritable(str(kept.folder), error.strerror or str(error)) from error
        freed = sum(entry.nbytes for entry in removed)
        console.note(f"removed {_counted(len(removed))} ({_size(freed)}) from {kept.folder}")


def _caches(kind: str | None) -> dict[str, KeptFiles]:
    """The user's own, by kind; or the one asked for."""
    from ostinato.devices.cpu.code_cache import CodeCache
    from ostinato.runtime.pack_cache import PackCache

    caches = dict(zip(KINDS, (CodeCache.of_user(), PackCache.of_user()), strict=True))
    return caches if kind is None else {kind: caches[kind]}


def _report(kept: KeptFiles) -> dict[str, Any]:
    entries = kept.entries()[::-1]
    rows = [{"key": entry.key, "bytes": entry.nbytes, "last_used": entry.used} for entry in entries]
    return {
        "path": str(kept.folder), "entries": rows, "bytes": sum(entry.nbytes for entry in entries),
        "cap": kept.max_bytes, "not_used_because": kept.doubt() or None,
    }  # fmt: skip


def _show(kept: KeptFiles) -> None:
    entries, doubt, now = kept.entries()[::-1], kept.doubt(), time.time()
    total = sum(entry.nbytes for entry in entries)
    room = f"{_counted(len(entries))}, {_size(total)} of {_size(kept.max_bytes)}"
    click.echo(f"{kept.what}, {kept.folder}: {room}")
    if doubt:
        click.echo(f"not used: {doubt}")
    if entries:
        click.echo(f"{'entry':<12} {'size':>12}  last used")
    for entry in entries:
        click.echo(f"{entry.key[:12]} {_size(entry.nbytes):>12}  {_ago(now - entry.used)}")


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
