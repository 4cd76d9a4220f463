"""How fast a model decodes and reads prompts on this machine, and how near that is to the memory's limit."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ostinato.device.measures import Bandwidth, ReadsMemory
from ostinato.engine.bench import Spread
from ostinato.engine.cold import ColdStart
from ostinato.engine.llm import LLM
from ostinato.engine.rates import Rig, Taken, Work
from ostinato.engine.stages import StageShare, profile_of
from ostinato.errors.generate import InvalidSetting
from ostinato.generate.settings import check_count
from ostinato.host.limits import cpu_threads
from ostinato.host.usage import MemoryUse, memory_use

MEASURED: Mapping[str, str] = {
    "tokens_per_second": "of whole rounds; decoding is greedy, as in the token loop at temperature 0",
    "host_us_per_token": "wall time less that inside the device, the median round: Python around a step",
    "weight_bytes": "packed weights that each decoded token reads whole",
    "bytes_per_token": "those, and the keys and values it attends, the mean over a round",
    "share": "bytes_per_token × the median of tokens_per_second ÷ bandwidth.best",
    "bandwidth": "bytes per second that all threads read from memory, by loops that do nothing else: the "
    "best of all reads, some before each round",
    "stages": "means over threads, of the quicker half of the tokens; a run of its own, with time stamps",
    "memory": "bytes of this process, before anything that only measures was allocated",
    "cold": "seconds from the start of a process to its first token, and to its end",
}


@dataclass(frozen=True)
class Rate:
    """One piece of work, of all rounds. `bytes_per_token` and `share` are None for a prompt, which reads the
    weights once for many tokens, and `share` where the device measures no bandwidth."""

    work: Work
    tokens_per_second: Spread
    host_us_per_token: float
    bytes_per_token: float | None = None
    share: float | None = None
    stages: tuple[StageShare, ...] = ()

    @property
    def fault(self) -> str | None:
        """What is wrong with the yardstick: nothing reads faster than memory can be read."""
        if self.share is None or self.share <= 1:
            return None
        return f"{self.work.name} reaches {self.share:.3f} of the bandwidth: the yardstick is too short"


@dataclass(frozen=True)
class MemoryReport:
    """After load: when the first token was there. `peak`: when all work had been done once."""

    anonymous: int
    files: int
    peak: int


@dataclass(frozen=True)
class RatesReport:
    """`bandwidth` in bytes per second: the best of all reads, and the best of each sample."""

    model: str
    device: str
    kv_dtype: str
    context: int
    threads: int
    rounds: int
    weight_bytes: int
    rates: tuple[Rate, ...]
    bandwidth_best: float | None
    bandwidth_samples: tuple[float, ...]
    memory: MemoryReport | None
    cold: tuple[ColdStart, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(fault for rate in self.rates if (fault := rate.fault))

    def as_dict(self) -> dict[str, Any]:
        raw = asdict(self)
        best, samples = raw.pop("bandwidth_best"), raw.pop("bandwidth_samples")
        for rate, told in zip(self.rates, raw["rates"], strict=True):
            told["work"]["name"] = rate.work.name
        bandwidth = None if best is None else {"best": best, "samples": samples}
        return {**raw, "bandwidth": bandwidth, "faults": self.faults, "measured": dict(MEASURED)}


def context_for(works: Sequence[Work]) -> int:
    """Positions of a KV cache that has room for each of them."""
    return max(work.positions for work in works)


def measure_rates(
    llm: LLM,
    works: Sequence[Work],
    *,
    rounds: int,
    profile: bool = False,
    cold: Sequence[ColdStart] = (),
    threads: int | None = None,
    on_round: Callable[[Work, int], None] = lambda work, number: None,
) -> RatesReport:
    """Do each work once untimed and `rounds` times timed, one after the other.

    `on_round` hears 0 for the untimed one. `cold` and `threads` (None: the default) are only reported. Raises
    InvalidSetting, also when the work exceeds the context.
    """
    check_count("rounds", rounds)
    need = context_for(works)
    if need > llm.context:
        raise InvalidSetting("context", f"at least {need} for the deepest work", str(llm.context))
    rig = Rig(llm)
    device = llm.inference.devices.device(llm.inference.location)
    rig.time(Work("decode", 1))
    loaded = memory_use()
    for work in works:
        on_round(work, 0)
        rig.time(work)
    memory = _memory(loaded, memory_use())
    yardstick = device.read_bandwidth() if isinstance(device, ReadsMemory) else None
    taken = [_timed(rig, work, rounds, yardstick, on_round) for work in works]
    best = yardstick.best if yardstick else None
    weights = rig.weight_bytes()
    return RatesReport(
        model=str(llm.file.path), device=str(llm.inference.location), kv_dtype=str(llm.kv_dtype).lower(),
        context=llm.context, threads=threads or cpu_threads(), rounds=rounds, weight_bytes=weights,
        rates=tuple(
            rate_of(
                work, times, weights + rig.kv_bytes(work) if work.kind == "decode" else None, best,
                profile_of(rig, device, work) if profile else (),
            )
            for work, times in zip(works, taken, strict=True)
        ),
        bandwidth_best=best, bandwidth_samples=tuple(yardstick.samples) if yardstick else (),
        memory=memory, cold=tuple(cold),
    )  # fmt: skip


def _timed(
    rig: Rig, work: Work, rounds: int, yardstick: Bandwidth | None, on_round: Callable[[Work, int], None]
) -> list[Taken]:
    taken = []
    for number in range(1, rounds + 1):
        on_round(work, number)
        if yardstick is not None:
            yardstick.sample()
        taken.append(rig.time(work))
    return taken


def rate_of(
    work: Work,
    taken: Sequence[Taken],
    bytes_per_token: float | None,
    bandwidth: float | None,
    stages: tuple[StageShare, ...] = (),
) -> Rate:
    """What the rounds of one work come to."""
    spread = Spread.of([work.tokens / one.seconds for one in taken])
    host = statistics.median((one.seconds - one.device) / work.tokens * 1e6 for one in taken)
    share = None
    if bytes_per_token is not None and bandwidth is not None:
        share = bytes_per_token * spread.median / bandwidth
    return Rate(work, spread, host, bytes_per_token, share, stages)


def _memory(loaded: MemoryUse | None, worked: MemoryUse | None) -> MemoryReport | None:
    if loaded is None or worked is None:
        return None
    return MemoryReport(loaded.anonymous, loaded.files, worked.peak)
