"""`ostinato plan`: what a held decode plan holds, for someone who has never seen the code."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from ostinato.cli.console import Console, console_options
from ostinato.cli.run import complete_model
from ostinato.hub.aliases import DEFAULT_MODEL

if TYPE_CHECKING:
    from ostinato.engine.plan_facts import CopyRow, InputRow, Memory, Part
    from ostinato.engine.plan_report import PlanReport


@click.group()
@console_options
def plan() -> None:
    """Look into the plans that decoding replays."""


@plan.command()
@click.option("-m", "--model", shell_complete=complete_model, default=DEFAULT_MODEL, show_default=True,
              help="A .gguf file, a safetensors folder, hf:org/name, or a short name.")  # fmt: skip
@click.option("--device", metavar="D", help="KIND or KIND:ORDINAL.")
@click.option("--context", type=click.IntRange(min=1), metavar="N",
              help="Positions of the KV cache; by default what the model was trained for, at most 8192.",
              )  # fmt: skip
@click.option("--kv-dtype", type=click.Choice(["f16", "f32", "q8_0"]), help="What the KV cache is kept in.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@console_options
@click.pass_obj
def show(
    console: Console,
    model: str,
    device: str | None,
    context: int | None,
    kv_dtype: str | None,
    as_json: bool,
) -> None:
    """Explain a model's held decode plan. Nothing runs and no weight is read."""
    from ostinato.engine.plan_report import explain

    progress = console.verbosity >= 0
    report = explain(model, device=device, context=context, kv_dtype=kv_dtype, progress=progress)
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2, ensure_ascii=False))
        return
    for line in told(report):
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        click.echo(
            "\n".join(textwrap.wrap(line, 110, subsequent_indent=indent, drop_whitespace=True) or [""])
        )


def told(report: PlanReport) -> Iterator[str]:
    """The report as lines of text."""
    yield f"{report.model} on {', '.join(report.devices)}, {report.context} positions"
    yield ""
    yield "One decode step, planned once and run again for every token with that token's data in its place."
    yield f"{report.nodes} nodes, {report.consts} of them bound from outside (weights, KV slabs, data)."
    yield from _section("SCHEDULE", _schedule(report))
    yield from _section("COPIES", _copies(report.copies))
    yield from _section("MEMORY", _memory(report.memory, report.context))
    yield from _section("INPUTS", _inputs(report.inputs, report.rebound_bytes, report.symbols))
    yield from _section("VALIDITY", _validity(report))
    yield from _section("CAPTURE", _capture(report))
    yield from _section(
        "TIME (ms, the fastest of some runs; once for each plan, and what a held plan spares every token)",
        _times(report),
    )


def _section(title: str, lines: Iterator[str]) -> Iterator[str]:
    yield ""
    yield title
    for line in lines:
        yield f"  {line}".rstrip()


def _schedule(report: PlanReport) -> Iterator[str]:
    yield f"Compiled as {_segments(report.segments)}; {_regions(report.regions)}."
    yield "#n is an op of the same part, in1 … a value from outside it; `rows` and `out_rows` are 1 here."
    for part in report.schedule:
        yield from _part(part)


def _segments(segments: Sequence[tuple[str, int]]) -> str:
    if len(segments) == 1:
        return f"1 segment ({segments[0][1]} ops on {segments[0][0]})"
    ops: Counter[str] = Counter()
    for device, count in segments:
        ops[device] += count
    where = ", ".join(f"{count} ops on {device}" for device, count in ops.items())
    return f"{len(segments)} segments, cut where the device changes ({where})"


def _regions(regions: Mapping[str, int]) -> str:
    """What the device has kernels of its own for."""
    if not regions:
        return "the device asks for no regions"
    told = ", ".join(f"{count} {pattern}" for pattern, count in sorted(regions.items()))
    return f"{sum(regions.values())} regions, each what one kernel does ({told})"


def _part(part: Part) -> Iterator[str]:
    name = (
        f"{'layer' if len(part.layers) == 1 else 'layers'} {spans(part.layers)}" if part.layers else part.name
    )
    where = ", ".join(
        device if len(part.locations) == 1 else f"{count} on {device}"
        for device, count in part.locations.items()
    )
    if part.as_layer is not None:
        yield f"{name}: as layer {part.as_layer}, {part.count} ops each ({where})"
        return
    kinds = Counter(row.op for row in part.ops)
    yield f"{name}: {part.count} ops ({where}): " + ", ".join(f"{n} {op}" for op, n in kinds.items())
    for number, row in enumerate(part.ops, 1):
        settings = f"  {row.settings}" if row.settings else ""
        yield (f"  {f'#{number}':>4} {row.op:<20} {', '.join(row.operands):<32} → "
               f"{row.shape} {row.dtype}{settings}")  # fmt: skip
        if row.holds:
            yield f"       holds: {', '.join(row.holds)}"


def spans(numbers: Sequence[int]) -> str:
    """`0-3, 5`"""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _copies(copies: Sequence[CopyRow]) -> Iterator[str]:
    for row in copies:
        times = f"{row.count} × " if row.count > 1 else ""
        yield f"{times}{row.value}: {row.origin} → {row.target}, {size(row.bytes)}"
        yield f"    {row.reason}"
    if all(row.target.startswith("host") for row in copies):
        yield "None between devices: everything is made where it is read."


def _memory(memory: Memory, context: int) -> Iterator[str]:
    stored, packed = (sum(getattr(w, f) for w in memory.weights) for f in ("stored_bytes", "packed_bytes"))
    yield f"weights: {size(stored)} in the file, {size(packed)} packed"
    for row in memory.weights:
        plural = "s" if row.tensors > 1 else ""
        what = f"{row.tensors} tensor{plural}, {row.parameters:,} numbers"
        sizes = f"{size(row.stored_bytes)} → {size(row.packed_bytes)}"
        yield f"    {row.stored} → {row.packed} on {row.location}: {what}, {sizes}"
    position, all_of_them = size(memory.kv_bytes_per_position), size(memory.kv_bytes)
    yield (f"KV cache, {memory.kv_dtype}: {position} a position, {all_of_them} at {context}; touched only as "
           "positions are written")  # fmt: skip
    yield f"outputs: {size(memory.output_bytes)} that leave a segment, kept between tokens"
    yield (f"intermediates: an arena of {size(memory.arena_bytes)} in which they take turns; "
           f"{size(memory.inner_bytes)} all at once")  # fmt: skip


def _inputs(inputs: Sequence[InputRow], rebound: int, symbols: Sequence[str]) -> Iterator[str]:
    yield f"{size(rebound)} are bound anew for every token; weights and KV slabs stay as they are."
    said = {"every token": "every token", "once": "bound once", "never": "dead"}
    for row in inputs:
        label = f"{row.name:<10} {said[row.when]:<12} {row.dtype} {row.shape}"
        yield f"{label}, {size(row.bytes) + (' spared' if row.when == 'never' else '')}: {row.why}"
    if symbols:
        yield f"As symbols, without bytes: {', '.join(symbols)}."


def _validity(report: PlanReport) -> Iterator[str]:
    yield "The plan serves a one-row step when all of this is the same; else it is dropped and made anew:"
    for row in report.key:
        yield f"{row.field:<12} {row.value}"
        yield f"{'':<12} {row.meaning}"
    yield "It is dropped too when a device or kernel has come or gone (the topology generation)."
    yield "Another KV cache of the same structure is re-bound into it, or refused, which changes nothing:"
    for reason, words in report.refusals.items():
        yield f"    {reason}: {words}"


def _capture(report: PlanReport) -> Iterator[str]:
    if report.capture_refusal is None:
        yield "granted: the plan can be recorded over fixed addresses and replayed"
    else:
        yield f"refused: {report.capture_refusal}; tokens run through the held plan"


def _times(report: PlanReport) -> Iterator[str]:
    whole = ("build the graph", "optimize", "compile")
    for name in whole:
        yield f"{name:<22}{report.milliseconds[name]:8.2f}"
        if name == "optimize":
            for step, spent in report.milliseconds.items():
                if step not in whole:
                    yield f"  {step:<20}{spent:8.2f}"


def size(count: int) -> str:
    """Bytes for a person."""
    for unit, power in (("GB", 9), ("MB", 6), ("KB", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.1f} {unit}"
    return f"{count} bytes"
