"""Replanned, held and captured decoding side by side: the same tokens, one run, the same bits."""

from __future__ import annotations

import gc
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.decode.kv_cache import KvCache
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import LAST
from ostinato.engine.clocked import clocked
from ostinato.engine.llm import LLM
from ostinato.engine.pool import PlanMode, run_step
from ostinato.errors.generate import InvalidSetting
from ostinato.generate.settings import check_count

PROMPT = "An ostinato is a figure that repeats while everything around it changes."
PROMPT_TOKENS = 16
"""At most so many of its tokens are used."""
UNCOUNTED = 1
"""Tokens at the start of each round that are compared but not timed: the capture is made anew there."""
BLOCK = 4
"""Tokens in a row of one mode before it is another's turn: slow changes of the machine hit all alike."""

MODES: Mapping[str, PlanMode] = dict(zip(("D1", "D2", "D3"), PlanMode, strict=True))

MEASURED: Mapping[str, str] = {
    "ms_per_token": "wall time of one whole decode step that brings its logits to the host",
    "kernel_us_per_token": "of it, time inside the device: Bound.run or Captured.replay, and Pending.wait",
    "host_us_per_token": "the rest, token by token: planning, binding, uploads, downloads, Python around it",
    "optimize_calls_per_token": "how often a plan was made, by the context's counters",
}


@dataclass(frozen=True)
class Spread:
    """Of all timed tokens of all rounds."""

    median: float
    low: float
    p25: float
    p75: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, p25, median, p75, high = (float(v) for v in np.percentile(values, [0, 25, 50, 75, 100]))
        return cls(median, low, p25, p75, high)


@dataclass(frozen=True)
class ModeResult:
    """`steps` counts the timed tokens by how they really ran; `notes` why not in the mode's own way."""

    mode: str
    name: str
    ms_per_token: Spread
    kernel_us_per_token: float
    host_us_per_token: float
    optimize_calls_per_token: float
    steps: Mapping[str, int]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Ratio:
    """Of the medians of all rounds, and the lowest and highest of one round."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Mismatch:
    """The first step of a round whose logits differ from D1's; step 0 is the prompt."""

    mode: str
    round: int
    step: int


@dataclass(frozen=True)
class ModesReport:
    """`rounds` were run; a mismatch ends the run after its round."""

    model: str
    device: str
    context: int
    prompt_tokens: int
    tokens: int
    rounds: int
    modes: tuple[ModeResult, ...]
    ratios: Mapping[str, Ratio]
    mismatches: tuple[Mismatch, ...]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "equal_bits": not self.mismatches, "measured": dict(MEASURED)}


@dataclass
class _Samples:
    """A mode's timed tokens, over the rounds."""

    wall: list[list[float]] = field(default_factory=list)
    kernel: list[float] = field(default_factory=list)
    optimize_calls: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    drops: Counter[str] = field(default_factory=Counter)


class _Bench:
    """One model on one clocked device, and a slot for each mode; weights are packed once for all."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.context, self.clock = clocked(llm.inference)
        self.prompt = list(llm.tokenizer.encode(PROMPT, add_special=True, parse_special=True))[:PROMPT_TOKENS]
        self.slots = {mode: DecodeSlot() for mode in MODES}
        self.samples = {mode: _Samples() for mode in MODES}

    def new_cache(self) -> KvCache:
        return KvCache.allocate(self.llm.model, self.context, self.llm.context, self.llm.kv_dtype)

    def step(self, mode: str, tokens: Sequence[int], cache: KvCache) -> npt.NDArray[np.float32]:
        """Logits `[vocab]`."""
        slot = self.slots[mode]
        return run_step(self.llm.model, tokens, cache, self.context, slot, MODES[mode], want=LAST)

    def greedy(self, count: int) -> list[int]:
        """The likeliest `count` tokens after the prompt: what every mode is then fed."""
        cache, ids, tokens = self.new_cache(), self.prompt, list[int]()
        for _ in range(count):
            tokens.append(int(self.step("D2", ids, cache).argmax()))
            ids = tokens[-1:]
        return tokens

    def round(self, tokens: Sequence[int], turn: int, *, timed: bool = True) -> dict[str, list[bytes]]:
        """Prompt and tokens in fresh caches, modes taking turns; digests of each step's logits, by mode."""
        caches = {mode: self.new_cache() for mode in MODES}
        digests = {mode: [_digest(self.step(mode, self.prompt, caches[mode]))] for mode in MODES}
        if timed:
            for samples in self.samples.values():
                samples.wall.append([])
        edges = [0, *range(UNCOUNTED, len(tokens), BLOCK), len(tokens)]
        for block, (first, end) in enumerate(pairwise(edges)):
            at = (turn + block) % len(MODES)
            for mode in [*MODES][at:] + [*MODES][:at]:
                gc.collect()  # no mode pays for another's garbage
                for token in tokens[first:end]:
                    digests[mode].append(self.token(mode, token, caches[mode], timed and first > 0))
        return digests

    def token(self, mode: str, token: int, cache: KvCache, timed: bool) -> bytes:
        samples, counters, statistics = self.samples[mode], self.context.counters, self.slots[mode].statistics
        plans, before, self.clock.seconds = counters.total().optimize_calls, replace(statistics), 0.0
        began = time.perf_counter()
        logits = self.step(mode, [token], cache)
        wall = time.perf_counter() - began
        if timed:
            samples.wall[-1].append(wall)
            samples.kernel.append(self.clock.seconds)
            samples.optimize_calls += counters.total().optimize_calls - plans
            samples.drops.update(statistics.drops[len(before.drops) :])
            for how in ("replanned", "held", "captured"):
                samples.steps[how] += getattr(statistics, how) - getattr(before, how)
        return _digest(logits)

    def walls(self, mode: str) -> list[float]:
        return list(chain.from_iterable(self.samples[mode].wall))

    def result(self, mode: str) -> ModeResult:
        samples, walls = self.samples[mode], self.walls(mode)
        host = [wall - kernel for wall, kernel in zip(walls, samples.kernel, strict=True)]
        refusal = self.slots[mode].statistics.capture_refusal
        notes = [f"not captured: {refusal}"] if refusal else []
        notes += [f"plan dropped {n} times: {reason}" for reason, n in samples.drops.items()]
        return ModeResult(
            mode=mode,
            name=MODES[mode].value,
            ms_per_token=Spread.of([wall * 1e3 for wall in walls]),
            kernel_us_per_token=float(np.median(samples.kernel)) * 1e6,
            host_us_per_token=float(np.median(host)) * 1e6,
            optimize_calls_per_token=samples.optimize_calls / len(walls),
            steps=dict(+samples.steps),
            notes=tuple(notes),
        )

    def ratio(self, upper: str, lower: str) -> Ratio:
        above, below = self.samples[upper].wall, self.samples[lower].wall
        rounds = [float(np.median(a) / np.median(b)) for a, b in zip(above, below, strict=True)]
        whole = float(np.median(self.walls(upper)) / np.median(self.walls(lower)))
        return Ratio(whole, min(rounds), max(rounds))


def compare_modes(
    llm: LLM, *, tokens: int, rounds: int, on_round: Callable[[int], None] = lambda number: None
) -> ModesReport:
    """Decode the same tokens in each mode, `tokens` of them timed, `rounds` times over fresh caches.

    Raises InvalidSetting, also when prompt and tokens exceed the context. `on_round` hears 0 for the warm-up.
    """
    check_count("tokens", tokens)
    check_count("rounds", rounds)
    bench = _Bench(llm)
    need = len(bench.prompt) + UNCOUNTED + tokens
    if need > llm.context:
        raise InvalidSetting("context", f"at least {need} for prompt and tokens", str(llm.context))
    on_round(0)
    ids = bench.greedy(UNCOUNTED + tokens)
    bench.round(ids[: UNCOUNTED + 1], 0, timed=False)  # plans, captures, packed weights: not timed
    mismatches: list[Mismatch] = []
    number = 0
    while number < rounds and not mismatches:
        number += 1
        on_round(number)
        digests = bench.round(ids, number)
        for mode in MODES:
            differing = [a != b for a, b in zip(digests["D1"], digests[mode], strict=True)]
            if any(differing):
                mismatches.append(Mismatch(mode, number, differing.index(True)))
    return ModesReport(
        model=str(llm.file.path), device=str(llm.inference.location), context=llm.context,
        prompt_tokens=len(bench.prompt), tokens=tokens, rounds=number,
        modes=tuple(bench.result(mode) for mode in MODES),
        ratios={"D1/D2": bench.ratio("D1", "D2"), "D2/D3": bench.ratio("D2", "D3")},
        mismatches=tuple(mismatches),
    )  # fmt: skip


def _digest(logits: npt.NDArray[np.float32]) -> bytes:
    return hashlib.blake2b(logits.tobytes(), digest_size=16).digest()
