"""`ostinato doctor`: what there is to work with here, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ostinato.cli.console import Console, console_options
from ostinato.cli.plan import size

if TYPE_CHECKING:
    from ostinato.engine.doctor import Health

_WORDS = {"python": "Python", "llvm": "LLVM"}


@click.command()
@click.option("--no-measure", is_flag=True, help="Don't read memory to see how fast that is.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@console_options
@click.pass_obj
def doctor(console: Console, no_measure: bool, as_json: bool) -> None:
    """Look at this machine and installation; say what is wrong and what to do about it. Ends with 0."""
    from ostinato.engine.doctor import examine

    if not no_measure:
        console.note("reading memory to see how fast that is", level=1)
    health = examine(measure=not no_measure)
    if as_json:
        click.echo(json.dumps(health.as_dict(), indent=2, ensure_ascii=False))
        return
    for line in told(health):
        click.echo(line)


def told(health: Health) -> Iterator[str]:
    """What was found as lines of text."""
    for label, value in _rows(health):
        yield f"{label:<17} {value}"
    yield ""
    if not health.problems:
        yield "no problems found"
    for problem in health.problems:
        yield f"problem: {problem.what}"
        if problem.remedy:
            yield f"  {problem.remedy}"


def _rows(health: Health) -> Iterator[tuple[str, str]]:
    yield "versions", ", ".join(f"{_WORDS.get(name, name)} {v}" for name, v in health.versions.items())
    yield "system", health.system["os"]
    yield "processor", health.system["cpu"]
    sets = health.instruction_sets
    yield "instruction set", f"{sets.selected or 'none'} (usable here: {', '.join(sets.usable) or 'none'})"
    threads = health.threads
    quota = "no quota" if threads.quota is None else f"a quota of {threads.quota:g}"
    yield "threads", (f"{'?' if threads.used is None else threads.used} ({threads.cores} cores in "
                      f"{threads.allowed} of {threads.present} logical CPUs, {quota})")  # fmt: skip
    free = "unknown" if health.free_memory is None else f"{size(health.free_memory)} free"
    speeds = [f"{name} reads up to {rate / 1e9:.1f} GB/s" for name, rate in health.bandwidth.items()]
    yield "memory", ", ".join([free, *speeds])
    for state in health.devices:
        default = " (the default)" if state.default else ""
        yield "device", f"{state.name}{default}: {state.why_not or 'ready'}"
    code, models = health.code_cache, health.model_cache
    used = f", not used: {code.not_used_because}" if code.not_used_because else ""
    entries = f"{code.entries} {'entry' if code.entries == 1 else 'entries'}"
    yield "compiled code", f"{code.path}: {entries}, {size(code.bytes)} of {size(code.cap)}{used}"
    count = f"{models.models} model{'' if models.models == 1 else 's'}"
    default = "" if models.default else ", the default one not among them"
    yield "models", f"{models.path}: {count}, {size(models.bytes)}{default}"
