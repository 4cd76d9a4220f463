"""`ostinato bench` as lines of text."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ostinato.cli.plan import size

if TYPE_CHECKING:
    from ostinato.engine.cold import ColdStart
    from ostinato.engine.rates_report import Rate, RatesReport


def told(report: RatesReport) -> Iterator[str]:
    """The report as lines of text."""
    yield (f"{report.model} on {report.device}, {report.threads} threads, {report.kv_dtype} KV, "
           f"context {report.context}")  # fmt: skip
    yield f"{report.rounds} rounds; a decoded token reads {size(report.weight_bytes)} of weights"
    yield ""
    heads = f"{'tok/s':>9} {'p25':>9} {'p75':>9} {'host µs':>8} {'MB/token':>9} {'GB/s':>6} {'share':>6}"
    yield f"{'':<20} {heads}"
    for rate in report.rates:
        yield _row(rate)
    yield ""
    if report.bandwidth_best is None:
        yield "the device measures no read bandwidth: there are no shares"
    else:
        samples = report.bandwidth_samples
        usual = f"median of {len(samples)} samples {statistics.median(samples) / 1e9:.1f}"
        yield f"memory is read at up to {report.bandwidth_best / 1e9:.1f} GB/s ({usual}); share: of that"
    for fault in report.faults:
        yield f"fault: {fault}"
    if report.memory is not None:
        now = f"{size(report.memory.anonymous)} anonymous, {size(report.memory.files)} of files"
        yield f"memory: at most {size(report.memory.peak)}; after the first token {now}"
    if report.cold:
        yield _cold(report.cold)
    for rate in report.rates:
        if rate.stages:
            yield ""
            yield from _profile(rate)


def _row(rate: Rate) -> str:
    spread = rate.tokens_per_second
    row = (f"{rate.work.name:<20} {spread.median:9.2f} {spread.p25:9.2f} {spread.p75:9.2f} "
           f"{rate.host_us_per_token:8.1f}")  # fmt: skip
    if rate.bytes_per_token is not None:
        row += f" {rate.bytes_per_token / 1e6:9.1f} {rate.bytes_per_token * spread.median / 1e9:6.1f}"
    return row if rate.share is None else f"{row} {rate.share:6.3f}"


def _cold(starts: Sequence[ColdStart]) -> str:
    first = [start.first_token for start in starts]
    return (f"cold start: first token after {statistics.median(first):.2f} s "
            f"({min(first):.2f} to {max(first):.2f}, the first of {len(first)} {first[0]:.2f})")  # fmt: skip


def _profile(rate: Rate) -> Iterator[str]:
    total = sum(stage.us_per_token for stage in rate.stages)
    yield f"{rate.work.name}: {total:.1f} µs a token on the device"
    for stage in rate.stages:
        name = f"{stage.kernel}: {stage.weight}" if stage.weight else stage.kernel
        yield f"  {name:<44} {stage.us_per_token:10.1f} {stage.share:6.1%}"
