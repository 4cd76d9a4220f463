"""`ostinato models`: the models on this machine and what is in them."""

from __future__ import annotations

import json
from typing import Any

import click

from ostinato.cli.console import Console, console_options
from ostinato.cli.run import complete_model
from ostinato.hub.aliases import ALIASES
from ostinato.hub.installed import find as find_installed


@click.group()
@console_options
def models() -> None:
    """List, fetch, remove and look into models."""


as_json = click.option("--json", "as_json", is_flag=True, help="For programs.")


@models.command("list")
@as_json
@console_options
def list_(as_json: bool) -> None:
    """The short names, where their files are, and what else is in the cache."""
    from ostinato import hub

    cached = {model.name: model for model in hub.list_models()}
    rows: list[dict[str, Any]] = []
    for alias in ALIASES.values():
        model = cached.pop(alias.name, None)
        path = model.path if model else find_installed(alias)
        source = model.source if model else "installed package" if path else None
        rows.append({"name": alias.name, "description": alias.description, "licence": alias.licence,
                     "size": model.size if model else alias.size, "cached": model is not None,
                     "source": source, "path": str(path) if path else None})  # fmt: skip
    for model in cached.values():
        rows.append({"name": model.name, "description": "", "licence": None, "size": model.size,
                     "cached": True, "source": model.source, "path": str(model.path)})  # fmt: skip
    if as_json:
        _dump(rows)
        return
    for row in rows:
        where = row["path"] or f"not fetched yet (ostinato models pull {row['name']})"
        if row["path"] and not row["cached"]:
            where += f" ({row['source']})"
        click.echo(f"{row['name']:<12} {_megabytes(row['size']):>9}  {row['description']:<32} {where}")


@models.command()
@click.argument("model", shell_complete=complete_model)
@console_options
@click.pass_obj
def pull(console: Console, model: str) -> None:
    """Fetch a model by its short name, and print where it lies."""
    from ostinato import hub

    click.echo(hub.resolve(model, progress=console.verbosity >= 0).path)


@models.command()
@click.argument("model", shell_complete=complete_model)
@console_options
@click.pass_obj
def rm(console: Console, model: str) -> None:
    """Remove a model from the cache."""
    from ostinato import hub

    removed = hub.remove(model)
    console.note(f"removed {removed.path} ({_megabytes(removed.size)})")


@models.command()
@click.argument("model", shell_complete=complete_model)
@as_json
@console_options
@click.pass_obj
def inspect(console: Console, model: str, as_json: bool) -> None:
    """What a model file says about itself."""
    from ostinato import hub
    from ostinato.hub.inspect import inspect_model

    report = inspect_model(hub.resolve(model, progress=console.verbosity >= 0).path)
    if as_json:
        _dump(report.as_dict())
        return
    rows: list[tuple[str, Any]] = [
        ("file", f"{report.path} ({_megabytes(report.file_size)}, {report.format})"),
        ("name", report.name),
        ("architecture", report.architecture),
        ("parameters", f"{report.parameters:,} ({report.bits_per_parameter:.2f} bits each)"),
        ("layers", report.layers),
        ("width", f"{report.hidden}, heads {report.heads}, KV heads {report.kv_heads}, "
                  f"feed-forward {report.feed_forward}"),
        ("context", report.context_length),
        ("tokenizer", f"{report.tokenizer.kind} ({report.tokenizer.pre or 'no pre-tokenizer named'}), "
                      f"{report.tokenizer.vocabulary} tokens"),
        ("licence", report.licence),
        ("source", report.source),
    ]  # fmt: skip
    for label, value in rows:
        click.echo(f"{label + ':':<14} {'unknown' if value is None else value}")
    for use in report.encodings:
        counts = f"{use.tensors:>5} tensors {use.parameters:>14,} parameters {use.bytes:>14,} bytes"
        click.echo(f"  {use.name:<8} {counts}")
    if report.chat_template is None:
        click.echo("chat template: none")
    else:
        click.echo("chat template:")
        for line in report.chat_template.splitlines():
            click.echo(f"  {line}")


@models.command()
@click.argument("model", shell_complete=complete_model)
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), metavar="FILE.gguf",
              help="The file to write; it appears whole or not at all.")  # fmt: skip
@click.option("--type", "encoding", metavar="ENCODING",
              help="Store matrices as F32, F16, BF16, Q8_0, Q4_1, Q4_0; by default as they are.")  # fmt: skip
@console_options
@click.pass_obj
def convert(console: Console, model: str, output: str, encoding: str | None) -> None:
    """Write a model as one GGUF file, which llama.cpp reads too."""
    from ostinato import hub
    from ostinato.engine.convert import convert as write
    from ostinato.engine.opened import encoding_named

    target = encoding_named("type", encoding)
    write(hub.resolve(model, progress=console.verbosity >= 0).path, output, target)
    console.note(f"wrote {output}")


def _dump(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
