"""`ostinato bench`: ratios taken side by side in one run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ostinato.cli.console import Console, console_options
from ostinato.cli.run import complete_model
from ostinato.hub.aliases import DEFAULT_MODEL

if TYPE_CHECKING:
    from ostinato.engine.bench import ModesReport


@click.command()
@click.option("--modes", is_flag=True,
              help="Replanned (D1), held (D2) and captured (D3) decoding of the same tokens.")  # fmt: skip
@click.option("-m", "--model", shell_complete=complete_model, default=DEFAULT_MODEL, show_default=True,
              help="A .gguf file, a safetensors folder, hf:org/name, or a short name.")  # fmt: skip
@click.option("--tokens", type=click.IntRange(min=1), default=16, show_default=True, metavar="N",
              help="Timed tokens of each mode in each round.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, metavar="R",
              help="Rounds; each runs all modes.")  # fmt: skip
@click.option("--context", type=click.IntRange(min=1), metavar="N",
              help="Positions of the KV cache; by default what the model was trained for, at most 8192.",
              )  # fmt: skip
@click.option("--device", metavar="D", help="KIND or KIND:ORDINAL.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@console_options
@click.pass_obj
def bench(
    console: Console,
    modes: bool,
    model: str,
    tokens: int,
    rounds: int,
    context: int | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Measure on this machine; choose what with --modes. Ends with 1 when the modes' logits differ."""
    if not modes:
        raise click.UsageError("choose a benchmark: --modes (replanned, held and captured decoding).")
    from ostinato.engine.bench import compare_modes
    from ostinato.engine.llm import LLM

    llm = LLM(model, device=device, context=context, progress=console.verbosity >= 0)

    def on_round(number: int) -> None:
        console.note(f"round {number} of {rounds}" if number else "warming up", level=1)

    report = compare_modes(llm, tokens=tokens, rounds=rounds, on_round=on_round)
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2, ensure_ascii=False))
    else:
        for line in told(report):
            click.echo(line)
    if report.mismatches:
        first = report.mismatches[0]
        where = f"step {first.step}" if first.step else "the prompt"
        raise click.ClickException(
            f"the logits of {first.mode} differ from D1's: round {first.round}, {where}"
        )


def told(report: ModesReport) -> Iterator[str]:
    """The report as lines of text."""
    from ostinato.engine.bench import MEASURED

    yield f"{report.model} on {report.device}, context {report.context}"
    yield f"{report.tokens} tokens × {report.rounds} rounds after a prompt of {report.prompt_tokens} tokens"
    yield ""
    heads = f"{'ms/token':>9} {'p25':>8} {'p75':>8} {'kernel µs':>10} {'host µs':>9} {'plans/token':>12}"
    yield f"{'':<12} {heads}"
    for mode in report.modes:
        ms = mode.ms_per_token
        yield (f"{mode.mode} {mode.name:<9} {ms.median:9.3f} {ms.p25:8.3f} {ms.p75:8.3f} "
               f"{mode.kernel_us_per_token:10.0f} {mode.host_us_per_token:9.0f} "
               f"{mode.optimize_calls_per_token:12.2f}")  # fmt: skip
        for note in mode.notes:
            yield f"   {note}"
    yield ""
    for name, ratio in report.ratios.items():
        spread = f"single rounds {ratio.low:.2f} to {ratio.high:.2f}"
        yield f"{name.replace('/', ' ÷ ')}: {ratio.median:.2f} ({spread})"
    if not report.mismatches:
        yield "logits: the same bits in all modes, at every step of every round"
    yield ""
    yield f"ms/token: {MEASURED['ms_per_token']}; median and quartiles."
    yield f"kernel: {MEASURED['kernel_us_per_token']}; median."
    yield f"host: {MEASURED['host_us_per_token']}; median."
