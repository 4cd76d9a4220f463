"""Where a token's time goes on its device, by stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.device.measures import Profiles, RunTimes
from ostinato.engine.rates import Rig, Work

WAITING = "waiting for other threads"


@dataclass(frozen=True, slots=True)
class StageShare:
    """What a kernel takes of a token: `us_per_token`, and as a `share` of the time inside the device."""

    kernel: str
    weight: str
    us_per_token: float
    share: float


def profile_of(rig: Rig, device: object, work: Work) -> tuple[StageShare, ...]:
    """The work's stages, the longest first, WAITING last; they add up to the time inside the device. Nothing
    for a device that takes no profiles."""
    if not isinstance(device, Profiles):
        return ()
    rig.go_to(work.depth)
    with device.profiled() as profile:
        rig.time(work)
    runs = profile.runs()
    if work.kind == "prefill":
        return shares([runs], work.tokens)
    each = len(runs) // (work.tokens + 1)  # one a segment of the plan
    tokens = [runs[at : at + each] for at in range(each, len(runs), each)]  # without the one before the clock
    tokens.sort(key=lambda token: sum(run.total for run in token))
    return shares(tokens[: -(-len(tokens) // 2)], 1)


def shares(groups: Sequence[Sequence[RunTimes]], tokens: int) -> tuple[StageShare, ...]:
    """The mean of some groups of runs, each for so many tokens."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    waiting = 0.0
    for run in (run for group in groups for run in group):
        waiting += run.waiting
        for stage, spent in run.stages.items():
            seconds[stage.kernel, stage.weight] += spent
    rows = [*sorted(seconds.items(), key=lambda row: -row[1]), ((WAITING, ""), waiting)]
    total = sum(spent for _, spent in rows)
    to_us = 1e6 / (len(groups) * tokens)
    return tuple(StageShare(*name, spent * to_us, spent / total) for name, spent in rows)
