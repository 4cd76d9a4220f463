"""`ostinato bench --modes` as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.engine.bench import ModesReport


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
