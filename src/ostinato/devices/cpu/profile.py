"""Where the time of runs goes: the cycle counters that the runner stamps, added up by stage."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ostinato.device.measures import RunTimes, Stage
from ostinato.device.segment import Segment
from ostinato.devices.cpu.image import PROFILE, Job
from ostinato.devices.cpu.pool import ThreadPool
from ostinato.devices.cpu.tape import Place, Slot, Step, Tape
from ostinato.ir.shape import NodeId

_LAYER = re.compile(r"\b\d+\.")


@dataclass(frozen=True, slots=True)
class _Stamped:
    stages: Sequence[Stage]
    """One a step."""
    stamps: npt.NDArray[np.int64]
    """`[threads, steps, 2]`: the cycle counter before and after each thread's part of each step."""
    began: float
    ended: float


class Recorder:
    """The stamps of all runs, kept as they are until somebody asks for times."""

    def __init__(self) -> None:
        self._runs: list[_Stamped] = []

    def run(self, pool: ThreadPool, job: Job, tape: Tape, stages: Sequence[Stage]) -> None:
        """Run the job as `pool.run` does."""
        stamps = np.zeros((pool.threads, len(tape.steps), 2), np.int64)
        job.record[PROFILE] = stamps.ctypes.data
        began = time.perf_counter()
        try:
            pool.run(job.address, tape.scratch_bytes)
        finally:
            ended = time.perf_counter()
            job.record[PROFILE] = 0
        if tape.steps:
            self._runs.append(_Stamped(stages, stamps, began, ended))

    def runs(self) -> Sequence[RunTimes]:
        """What ran, in order. A run's total is from the first step's start to the last one's end, whichever
        thread they were on; the counters of all CPUs must agree, as those of x86 with `nonstop_tsc` do."""
        if not self._runs:
            return []
        first, last = self._runs[0], self._runs[-1]
        cycles = int(last.stamps.max()) - int(first.stamps.min())
        second = cycles / (last.ended - first.began)
        return [_times(run, second) for run in self._runs]


def _times(run: _Stamped, second: float) -> RunTimes:
    starts, ends = run.stamps[..., 0], run.stamps[..., 1]  # [threads, steps]
    total = float(ends.max() - starts.min()) / second
    stages: dict[Stage, float] = defaultdict(float)
    for stage, cycles in zip(run.stages, (ends - starts).mean(0), strict=True):
        stages[stage] += float(cycles) / second
    return RunTimes(total, dict(stages), total - sum(stages.values()))


def stages_of(segment: Segment, tape: Tape) -> Sequence[Stage]:
    """The stage of each step."""
    labels = {slot.node: slot.label for slot in segment.inputs}
    return [Stage(_kernel(step), _weight(step, labels)) for step in tape.steps]


def _kernel(step: Step) -> str:
    """The kernel's class, with the packed form that it reads or the op that it was made for."""
    name = type(step.kernel).__name__
    detail = getattr(step.kernel, "form", "") or step.label.partition(" ")[2]
    return f"{name} {detail}"


def _weight(step: Step, labels: Mapping[NodeId, str]) -> str:
    place = dict(zip(step.kernel.params, step.args, strict=True)).get("w")
    if isinstance(place, Place) and isinstance(place.space, Slot):
        return _LAYER.sub("", labels.get(place.space.node, ""))
    return ""
