"""A prompt beside the peak of the instructions that its products are made of.

    python benchmarks/prompt_peak.py MODEL.gguf ... [--tokens 512] [--threads 2] [--rounds 7]

The peak is a loop of nothing but independent dot products on registers, on all threads at once: bytes, pairs
of bfloat16, or fma, whichever a weight's products take. "share" is what the multiplications of a prompt would
take at that peak (its matrices but for the head, which reads one row) over what the prompt takes, attention
and all else included; the median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from ostinato.devices.cpu.device import CpuDevice
from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import BF16, F32V, I8, I32V
from ostinato.devices.cpu.engine import Engine
from ostinato.devices.cpu.image import Image, Job
from ostinato.devices.cpu.kernels.dot import dot4
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.kernels.rows import BRAIN, INT8
from ostinato.devices.cpu.memory import allocate
from ostinato.devices.cpu.tape import Items, Place, Slot, Step, Tape
from ostinato.devices.cpu.weights import PACKED
from ostinato.engine.llm import LLM
from ostinato.engine.rates import Rig, Work
from ostinato.host.limits import cpu_threads
from ostinato.ir.shape import NodeId

CHAINS, TURNS = 12, 1 << 20
PER_INSTRUCTION = {"bytes": 64, "bfloat16": 32, "float32": 16}
"""Multiplications of 16 lanes."""


@dataclass(frozen=True)
class Peak(Kernel):
    """An item is TURNS times CHAINS dot products of 16 lanes, each chain adding to its own sums."""

    kind: str

    @property
    def params(self) -> tuple[str, ...]:
        return ("numbers",)

    def body(self, f: Function, args: dict[str, Value]) -> None:
        isa, numbers = f.module.isa, args["numbers"]
        lanes = F32V if self.kind != "bytes" else I32V
        a, b = (f.load(I32V, numbers, 64 * i) for i in range(2))

        def step(total: Value) -> Value:
            if self.kind == "bytes":
                return dot4(f, isa, total, a.cast("bitcast", I8.x(64)), b.cast("bitcast", I8.x(64)), 127)
            if self.kind == "bfloat16":
                pairs = (value.cast("bitcast", BF16.x(32)) for value in (a, b))
                return f.call("llvm.x86.avx512bf16.dpbf16ps.512", F32V, total, *pairs)
            return f.fma(a.cast("bitcast", F32V), b.cast("bitcast", F32V), total)

        for _ in f.range(f["low"], f["high"]):
            sums = {f"c{i}": f.load(lanes, numbers, 64 * (2 + i)) for i in range(CHAINS)}
            for _, s in f.range(0, TURNS, 1, **sums):
                for name in sums:
                    s[name] = step(s[name])
            for i, name in enumerate(sums):
                f.store(s[name], f.at(numbers, f["thread"] * 4096), 64 * (2 + CHAINS + i))


def peak(engine: Engine, kind: str) -> float:
    """Multiplications a second, on all threads."""
    threads, kernel = engine.threads, Peak(kind)
    room = allocate(4096 * (threads + 1))
    room.array.view(np.int32)[: 16 * (2 + CHAINS)] = np.arange(16 * (2 + CHAINS)) & 63
    place = Place(Slot(NodeId(0)))
    job = Job(Image.of(Tape((Step(kernel, (place,), Items(threads), (place,), "peak"),), 0, 0),
                       [engine.address(kernel)]))  # fmt: skip
    job.point(NodeId(0), room.address)
    engine.pool.run(job.address)
    began = time.perf_counter()
    engine.pool.run(job.address)
    return threads * TURNS * CHAINS * PER_INSTRUCTION[kind] / (time.perf_counter() - began)


def products(llm: LLM, device: CpuDevice) -> Mapping[str, int]:
    """Multiplications for each token of a prompt, by kind."""
    found = dict.fromkeys(PER_INSTRUCTION, 0)
    kinds = {INT8: "bytes", BRAIN: "bfloat16", None: "float32"}
    for name, tensor in llm.model.weights.items():
        if len(tensor.shape) == 2 and name not in ("embedding", "head"):
            found[kinds[PACKED[tensor.encoding].rounding(device.engine.isa)]] += prod(tensor.shape)
    return {kind: count for kind, count in found.items() if count}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=cpu_threads())
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(
        f"{'model':<24} {'tok/s':>8}  {'at the peak':>11}  {'share':>6}  peak, 10^9 multiplications a second"
    )
    for model in options.models:
        llm = LLM(model, threads=options.threads, context=options.tokens + 64)
        rig = Rig(llm)
        device = llm.inference.devices.device(llm.inference.location)
        assert isinstance(device, CpuDevice)
        work, counts = Work("prefill", options.tokens), products(llm, device)
        rig.time(work)
        rates, limits, peaks = [], [], []
        for _ in range(options.rounds):
            peaks.append({kind: peak(device.engine, kind) for kind in counts})
            rates.append(options.tokens / rig.time(work).seconds)
            limits.append(1 / sum(count / peaks[-1][kind] for kind, count in counts.items()))
        share = statistics.median(rate / limit for rate, limit in zip(rates, limits, strict=True))
        told = ", ".join(f"{kind} {max(each[kind] for each in peaks) / 1e9:.0f}" for kind in counts)
        name = str(model).rpartition("/")[2]
        medians = f"{statistics.median(rates):8.1f}  {statistics.median(limits):11.1f}"
        print(f"{name:<24} {medians}  {share:6.3f}  {told}")


if __name__ == "__main__":
    main()
