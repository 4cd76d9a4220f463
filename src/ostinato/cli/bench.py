"""`ostinato bench`: rates, and what they cost; or the three ways to decode side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ostinato.cli.bench_modes import told as modes_told
from ostinato.cli.bench_rates import told as rates_told
from ostinato.cli.console import Console, console_options
from ostinato.cli.run import PACK_CACHE, complete_model, note_packs
from ostinato.hub.aliases import DEFAULT_MODEL

if TYPE_CHECKING:
    from ostinato.engine.rates import Work

DECODE, DEPTHS, PROMPTS, ROUNDS = 64, (0, 1024), (512,), 5
MODES_TOKENS, MODES_ROUNDS = 16, 3

_MODES_ONLY = ("tokens",)
_RATES_ONLY = ("decode", "depth", "prefill", "profile", "cold")


@click.command()
@click.option("-m", "--model", shell_complete=complete_model, default=DEFAULT_MODEL, show_default=True,
              help="A .gguf file, a safetensors folder, hf:org/name, or a short name.")  # fmt: skip
@click.option("--decode", type=click.IntRange(min=0), metavar="N",
              help=f"Tokens decoded in a round, {DECODE} by default; 0 for no decoding.")  # fmt: skip
@click.option("--depth", type=click.IntRange(min=0), multiple=True, metavar="D",
              help="Positions before them, 0 and 1024 by default; may be given several times.")  # fmt: skip
@click.option("--prefill", type=click.IntRange(min=0), multiple=True, metavar="N",
              help="Tokens of a prompt, 512 by default; may be given several times; 0 for no prompt.",
              )  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1), metavar="R",
              help=f"How often, by default {ROUNDS}, with --modes {MODES_ROUNDS}.")  # fmt: skip
@click.option("--profile", is_flag=True, help="Where the time goes on the device, by kernel and weight.")
@click.option("--cold", is_flag=True, help="Time starts of new processes as well, to their first token.")
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads.")
@click.option("--kv-dtype", type=click.Choice(["f16", "f32", "q8_0"]), help="What the KV cache is kept in.")
@click.option("--context", type=click.IntRange(min=1), metavar="N",
              help="Positions of the KV cache; by default as many as needed, with --modes what the model was "
              "trained for, at most 8192.")  # fmt: skip
@click.option("--device", metavar="D", help="KIND or KIND:ORDINAL.")
@click.option("--pack-cache", is_flag=True, help=PACK_CACHE)
@click.option("--modes", is_flag=True,
              help="Instead, replanned (D1), held (D2) and captured (D3) decoding of the same tokens.",
              )  # fmt: skip
@click.option("--tokens", type=click.IntRange(min=1), metavar="N",
              help=f"With --modes, timed tokens of each mode in a round, {MODES_TOKENS} by default.",
              )  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@console_options
@click.pass_obj
def bench(
    console: Console,
    model: str,
    decode: int | None,
    depth: tuple[int, ...],
    prefill: tuple[int, ...],
    rounds: int | None,
    profile: bool,
    cold: bool,
    threads: int | None,
    kv_dtype: str | None,
    context: int | None,
    device: str | None,
    pack_cache: bool,
    modes: bool,
    tokens: int | None,
    as_json: bool,
) -> None:
    """Measure on this machine: tokens per second, and which share of the memory's speed they reach. With
    --modes it ends with 1 when the modes' logits differ."""
    said = click.get_current_context().get_parameter_source
    for name in _RATES_ONLY if modes else _MODES_ONLY:
        if said(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} is {'not for' if modes else 'only for'} --modes.")
    machine: dict[str, Any] = {
        "device": device, "threads": threads, "kv_dtype": kv_dtype, "pack_cache": pack_cache,
    }  # fmt: skip
    if modes:
        _modes(console, model, context, tokens or MODES_TOKENS, rounds or MODES_ROUNDS, machine, as_json)
        return
    works = _works(DECODE if decode is None else decode, depth or DEPTHS, prefill or PROMPTS)
    _rates(console, model, context, works, rounds or ROUNDS, profile, cold, machine, as_json)


def _works(decode: int, depths: tuple[int, ...], prompts: tuple[int, ...]) -> list[Work]:
    from ostinato.engine.rates import Work

    works = [Work("decode", decode, depth) for depth in depths if decode]
    works += [Work("prefill", prompt) for prompt in prompts if prompt]
    if not works:
        raise click.UsageError("--decode 0 and --prefill 0 leave nothing to measure.")
    return works


def _rates(
    console: Console,
    model: str,
    context: int | None,
    works: list[Work],
    rounds: int,
    profile: bool,
    cold: bool,
    machine: dict[str, Any],
    as_json: bool,
) -> None:
    from ostinato.engine.cold import cold_start
    from ostinato.engine.llm import LLM
    from ostinato.engine.rates_report import context_for, measure_rates

    llm = LLM(model, context=context or context_for(works), progress=console.verbosity >= 0, **machine)
    starts = []
    for number in range(rounds if cold else 0):
        console.note(f"start {number + 1} of {rounds}", level=1)
        starts.append(cold_start(llm.file.path, _options(machine)))

    def on_round(work: Work, number: int) -> None:
        console.note(f"{work.name}: " + (f"round {number} of {rounds}" if number else "warming up"), level=1)

    report = measure_rates(
        llm, works, rounds=rounds, profile=profile, cold=starts, threads=machine["threads"], on_round=on_round
    )
    note_packs(console, llm)
    _print(report.as_dict() if as_json else rates_told(report))


def _options(machine: dict[str, Any]) -> list[str]:
    """The same machine for `ostinato run`."""
    options = []
    for name, value in machine.items():
        if value is not None and value is not False:
            options += ["--" + name.replace("_", "-")] + ([] if value is True else [str(value)])
    return options


def _modes(
    console: Console,
    model: str,
    context: int | None,
    tokens: int,
    rounds: int,
    machine: dict[str, Any],
    as_json: bool,
) -> None:
    from ostinato.engine.bench import compare_modes
    from ostinato.engine.llm import LLM

    llm = LLM(model, context=context, progress=console.verbosity >= 0, **machine)

    def on_round(number: int) -> None:
        console.note(f"round {number} of {rounds}" if number else "warming up", level=1)

    report = compare_modes(llm, tokens=tokens, rounds=rounds, on_round=on_round)
    note_packs(console, llm)
    _print(report.as_dict() if as_json else modes_told(report))
    if report.mismatches:
        first = report.mismatches[0]
        where = f"step {first.step}" if first.step else "the prompt"
        raise click.ClickException(
            f"the logits of {first.mode} differ from D1's: round {first.round}, {where}"
        )


def _print(report: dict[str, Any] | Iterator[str]) -> None:
    if isinstance(report, dict):
        click.echo(json.dumps(report, indent=2, ensure_ascii=False))
        return
    for line in report:
        click.echo(line)
