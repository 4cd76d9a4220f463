"""ostinato beside llama.cpp: the same files, threads and KV type, turn by turn.

    python benchmarks/peers.py MODEL.gguf ... --llama-python PYTHON | --llama-bench BINARY
        [--openvino-python PYTHON] [--row decode-0 --row prefill-512 ...] [--rounds 7] [--tokens 128]
        [--threads N] [--kv f16] [--json F]

PYTHON is one with llama-cpp-python, built natively on this machine, or with openvino-genai; BINARY is
llama.cpp's llama-bench. A row `decode-D` decodes --tokens tokens after D others, a row `prefill-N` reads a
prompt of N, a row `rows-N` decodes --tokens tokens in steps of N with the logits of each: N sequences for
llama.cpp, N rows of one for ostinato. Each round measures every engine once, in turns, and reads memory as
fast as it goes: B is the best of these reads in the whole run. The peer's figure is the best of llama.cpp's
with flash attention on and off and OpenVINO's (which has `decode-0` and prompts alone), by the median of its
rounds. While one engine is measured, the others' CPU time is watched: the table says how much they used.

B is read from far more memory than caches hold, but a model may fit into one, for a while, in part: "limit"
sets ours beside a loop that reads exactly as many bytes as a token does, over and over, in the same round.

A row is reached when the median of its rounds' ratios is at least --decode-ratio or --prefill-ratio, or, when
decoding, where the share (bytes of weights and KV that a token reads, times tokens per second, by B) is at
least --share. Should any engine in any row exceed B, the yardstick is wrong: no row is reached by its share.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from peer_engines import Engine, LlamaBench, LlamaWorker, OpenVinoWorker, Ours, Setup

from ostinato.device.measures import Bandwidth, ReadsMemory
from ostinato.devices.cpu.bandwidth import ReadBandwidth
from ostinato.engine.rates import Work
from ostinato.formats.gguf import GgufFile
from ostinato.host.limits import cpu_threads

ROWS = ("decode-0", "decode-2048", "decode-7000", "prefill-512")
SETTLE = 0.2
"""Seconds between two measurements: threads that wait for more work in a loop give up meanwhile."""


@dataclass
class Row:
    """One piece of work on one model: tokens per second of all rounds, by engine."""

    model: str
    work: Work
    rates: dict[str, list[float]]
    bytes_per_token: dict[str, float]
    limits: list[float] = field(default_factory=list)
    """Tokens per second, were nothing done but reading as many bytes as ours reads for each, in the same
    memory again and again; a round's each. Empty for what reads the weights once for many tokens."""
    idle_cpu: float = 0.0
    """The most CPU seconds per second that engines used which weren't measured."""

    @property
    def peer(self) -> str:
        """The fastest of the others."""
        peers = [name for name in self.rates if name != Ours.name]
        return max(peers, key=lambda name: statistics.median(self.rates[name]))

    @property
    def ratios(self) -> list[float]:
        """Ours to the peer's, round by round."""
        return [a / b for a, b in zip(self.rates[Ours.name], self.rates[self.peer], strict=True)]

    @property
    def of_limit(self) -> float | None:
        """Ours to the limit, the median of all rounds."""
        if not self.limits:
            return None
        return statistics.median(a / b for a, b in zip(self.rates[Ours.name], self.limits, strict=True))

    def median(self, name: str) -> float:
        return statistics.median(self.rates[name])

    def share(self, name: str, best: float) -> float | None:
        """Of the read bandwidth; None for what reads the weights once for many tokens."""
        if self.work.kind != "decode":
            return None
        return self.bytes_per_token[name] * self.median(name) / best


@dataclass
class Rule:
    """When a row is reached."""

    decode_ratio: float
    prefill_ratio: float
    least_share: float

    def fault(self, rows: Sequence[Row], best: float) -> list[str]:
        """Who read faster than the yardstick."""
        return [
            f"{row.model}, {row.work.name}: {name} reaches {share:.3f} of B"
            for row in rows
            for name in row.rates
            if (share := row.share(name, best)) is not None and share > 1
        ]

    def verdict(self, row: Row, best: float, fault: bool) -> str:
        target = self.decode_ratio if row.work.kind == "decode" else self.prefill_ratio
        if statistics.median(row.ratios) >= target:
            return "by ratio"
        share = row.share(Ours.name, best)
        if share is not None and share >= self.least_share and not fault:
            return "by share"
        return "no"


@dataclass
class Run:
    """All that one call of the command measures."""

    rounds: int
    yardstick: Bandwidth | None = None
    rows: list[Row] = field(default_factory=list)
    about: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def measure(self, ours: Ours, engines: Sequence[Engine], works: Sequence[Work], model: Path) -> None:
        if self.yardstick is None:
            assert isinstance(ours.device, ReadsMemory)
            self.yardstick = ours.device.read_bandwidth()
        stored = weight_bytes(model)
        for work in works:
            able = [engine for engine in engines if engine.can(work)]
            weights = {e.name: ours.rig.weight_bytes() if e is ours else stored for e in able}
            kv = ours.rig.kv_bytes(work) if work.kind == "decode" else 0.0
            row = Row(model.name, work, {e.name: [] for e in able},
                      {name: count + kv for name, count in weights.items()})  # fmt: skip
            self.rows.append(row)
            nbytes = row.bytes_per_token[Ours.name]
            reader = ReadBandwidth(ours.device.engine, round(nbytes)) if work.kind == "decode" else None
            for turn in range(self.rounds + 1):  # the first one fills caches and is not counted
                at = turn % len(able)
                for engine in (*able[at:], *able[:at]):
                    seconds, idle = alone(engine, engines, work)
                    if turn:
                        row.rates[engine.name].append(work.tokens / seconds)
                        row.idle_cpu = max(row.idle_cpu, idle)
                time.sleep(SETTLE)
                self.yardstick.sample()
                if turn and reader is not None:
                    row.limits.append(reader.repeated(work.tokens) / nbytes)
        self.about |= {engine.name.partition(",")[0]: engine.about() for engine in engines}


def alone(engine: Engine, engines: Sequence[Engine], work: Work) -> tuple[float, float]:
    """Seconds of the work, and CPU seconds per second that the others used meanwhile."""
    time.sleep(SETTLE)
    others = [other for other in engines if other is not engine]
    before, began = [other.cpu_seconds() for other in others], time.perf_counter()
    seconds = engine.time(work)
    whole = time.perf_counter() - began
    used = sum(other.cpu_seconds() - cpu for other, cpu in zip(others, before, strict=True))
    return seconds, used / whole


def weight_bytes(path: Path) -> int:
    """Bytes of a file's tensors that a token reads: not an embedding that is no head as well."""
    with GgufFile.open(path) as file:
        tensors = dict(file.tensors)
    if "output.weight" in tensors:
        del tensors["token_embd.weight"]
    return sum(tensor.nbytes for tensor in tensors.values())


def told(run: Run, rule: Rule) -> Iterator[str]:
    """The run as text."""
    assert run.yardstick is not None
    best = run.yardstick.best
    samples = run.yardstick.samples
    for name, facts in run.about.items():
        yield f"{name}: " + ", ".join(f"{key} {value}" for key, value in facts.items())
    yield (f"B, the fastest read of memory in this run: {best / 1e9:.1f} GB/s "
           f"(median of {len(samples)} samples {statistics.median(samples) / 1e9:.1f})")  # fmt: skip
    faults = rule.fault(run.rows, best)
    yield ""
    yield (f"{'model':<20} {'row':<20} {'ours':>8} {'peer':>8} {'flash':>5} {'ratio':>6} {'rounds':>13} "
           f"{'share':>6} {'peer':>6} {'limit':>6} {'idle':>5}  reached")  # fmt: skip
    for row in run.rows:
        ratios, flash = row.ratios, row.peer.rpartition(" ")[2][-5:]
        shares = [row.share(Ours.name, best), row.share(row.peer, best), row.of_limit]
        yield (f"{row.model[:20]:<20} {row.work.name:<20} {row.median(Ours.name):8.1f} "
               f"{row.median(row.peer):8.1f} {flash:>5} {statistics.median(ratios):6.3f} "
               f"{min(ratios):6.3f}-{max(ratios):6.3f} "
               + " ".join(f"{'':>6}" if share is None else f"{share:6.3f}" for share in shares)
               + f" {row.idle_cpu:5.0%}  {rule.verdict(row, best, bool(faults))}")  # fmt: skip
    yield ""
    yield "Tokens per second are medians; ratio: the median of all rounds', lowest and highest of one round;"
    yield "share: of B, by what a token reads; limit: ours to a loop that reads as many bytes in one place;"
    yield "idle: CPU that the engines used which weren't measured."
    for row in run.rows:
        yield f"{row.model}, {row.work.name}, by round: " + " ".join(f"{ratio:.3f}" for ratio in row.ratios)
    for fault in faults:
        yield f"YARDSTICK FAULT, no row is reached by its share: {fault}"


def as_dict(run: Run, rule: Rule) -> dict[str, Any]:
    assert run.yardstick is not None
    best = run.yardstick.best
    faults = rule.fault(run.rows, best)
    return {
        "about": run.about,
        "rule": asdict(rule),
        "bandwidth": {"best": best, "samples": run.yardstick.samples},
        "yardstick_faults": faults,
        "rows": [
            {
                "model": row.model,
                "work": {**asdict(row.work), "name": row.work.name},
                "tokens_per_second": row.rates,
                "bytes_per_token": row.bytes_per_token,
                "peer": row.peer,
                "ratios": row.ratios,
                "ratio": statistics.median(row.ratios),
                "shares": {name: row.share(name, best) for name in row.rates},
                "limits": row.limits,
                "of_limit": row.of_limit,
                "idle_cpu": row.idle_cpu,
                "reached": rule.verdict(row, best, bool(faults)),
            }
            for row in run.rows
        ],
    }


def work_of(row: str, tokens: int) -> Work:
    """`decode-D`, `prefill-N` or `rows-N`."""
    kind, _, number = row.partition("-")
    if kind not in ("decode", "prefill", "rows") or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{row!r} is neither decode-D nor prefill-N nor rows-N")
    if kind == "rows":
        rows = int(number)
        if not 0 < rows <= tokens:
            raise argparse.ArgumentTypeError(f"{row!r} with {tokens} tokens is no whole step")
        return Work("rows", tokens // rows * rows, rows=rows)
    return Work("decode", tokens, int(number)) if kind == "decode" else Work("prefill", int(number))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    peer = parser.add_mutually_exclusive_group(required=True)
    peer.add_argument("--llama-python", metavar="PYTHON")
    peer.add_argument("--llama-bench", metavar="BINARY")
    parser.add_argument("--openvino-python", metavar="PYTHON")
    parser.add_argument("--row", action="append", metavar="ROW", help=f"by default {', '.join(ROWS)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128, help="decoded in one round")
    parser.add_argument("--threads", type=int, default=cpu_threads())
    parser.add_argument("--kv", choices=("f16", "f32"), default="f16")
    parser.add_argument("--decode-ratio", type=float, default=1.0)
    parser.add_argument("--prefill-ratio", type=float, default=1.0)
    parser.add_argument("--share", type=float, default=0.9)
    parser.add_argument("--json", type=Path, metavar="FILE", help="written after every model")
    options = parser.parse_args()
    try:
        works = [work_of(row, options.tokens) for row in options.row or ROWS]
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    # The deepest first: what is filled once serves all rounds of a row, and less is only cut off.
    works.sort(key=lambda work: -work.depth)
    context = -(-max(work.positions for work in works) // 256) * 256
    sequences = max(work.rows for work in works)
    if sequences > 1 and (options.llama_bench or any(work.kind != "rows" for work in works)):
        parser.error("rows-N are measured by themselves, with --llama-python")
    run, rule = Run(options.rounds), Rule(options.decode_ratio, options.prefill_ratio, options.share)
    for model in options.models:
        setup = Setup(model, options.threads, context, options.kv, sequences)
        ours = Ours(setup)
        engines: list[Engine] = [ours]
        try:
            for flash in (True, False):
                if options.llama_python:
                    engines.append(LlamaWorker(options.llama_python, setup, flash))
                else:
                    engines.append(LlamaBench(options.llama_bench, setup, flash))
            if options.openvino_python:
                engines.append(OpenVinoWorker(options.openvino_python, setup))
            run.measure(ours, engines, works, model)
        finally:
            for engine in engines:
                engine.close()
        if options.json:
            options.json.write_text(json.dumps(as_dict(run, rule), indent=2))
    print("\n".join(told(run, rule)))


if __name__ == "__main__":
    main()
