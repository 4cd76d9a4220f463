"""How fast one row's attention reads its slabs, beside loops that only read.

    python benchmarks/attention_bandwidth.py [--depth 7000] [--heads 9] [--kv-heads 3] [--dim 64] ...

One pass is what a decode step does: for each layer a call over slabs of its own, rotation and slab writes
included, a barrier between layers. Each round runs the read loops over as many bytes, then attention. The
table has medians over the rounds: GB/s, and the ratio to the best read loop of the same round. The memory of
a shared machine drifts by a factor of two within minutes, so only ratios compare between runs; where others
compute at the same time, the best rounds of both say more than the medians.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from dataclasses import replace

import numpy as np

from ostinato.devices.cpu.compiler import compile_module
from ostinato.devices.cpu.emit.builder import Module
from ostinato.devices.cpu.engine import Engine
from ostinato.devices.cpu.image import Image, Job
from ostinato.devices.cpu.isa import select
from ostinato.devices.cpu.kernels.attention import AttendOne
from ostinato.devices.cpu.kernels.attention_shape import SPAN
from ostinato.devices.cpu.kernels.read import BLOCK, ReadBytes
from ostinato.devices.cpu.memory import Buffer, allocate
from ostinato.devices.cpu.slabs import SlabGeometry
from ostinato.devices.cpu.tape import Arena, Cell, Counters, ErrorRecord, Items, Place, Slot, Step, Tape
from ostinato.engine.llm import KV_DTYPES
from ostinato.ir.shape import NodeId

ROW, OUT = NodeId(0), NodeId(1)


def slab_of(slab: SlabGeometry, some: np.ndarray, huge: bool) -> Buffer:
    """A slab of random numbers: pages that were never written all read the same zeros."""
    buffer = allocate(slab.nbytes, huge=huge)
    shape = (1, slab.kv_heads, slab.capacity, slab.dim)
    slab.from_logical(np.resize(some, shape), buffer.array)
    return buffer


def filled(nbytes: int, huge: bool) -> Buffer:
    """Memory for the loops that only read."""
    buffer = allocate(nbytes, huge=huge)
    buffer.array[:] = 1
    return buffer


def attention(
    engine: Engine, kernel: AttendOne, depth: int, slabs: list[tuple[Buffer, Buffer]], keep: list[Buffer]
) -> Job:
    """A call for each layer, with a barrier before it."""
    steps = []
    spans = -(-depth // SPAN)
    for layer in range(len(slabs)):
        places: dict[str, Place | int] = dict.fromkeys(kernel.params, Place(Slot(ROW)))
        places |= {"start": Place(Cell(depth - 1)), "length": Place(Cell(depth)), "code_n": 1}
        places |= {"count": Place(Cell(1))}
        places |= {"partials": Place(Arena()), "counters": Place(Counters()), "out": Place(Slot(OUT))}
        places |= {"k_slab": Place(Slot(NodeId(2 + 2 * layer))), "v_slab": Place(Slot(NodeId(3 + 2 * layer)))}
        places |= {"error": Place(ErrorRecord())}
        args = tuple(places[name] for name in kernel.params)
        steps.append(Step(kernel, args, Items(kernel.kv_heads * spans), (), "attend", barrier=True))
    job = job_of(engine, steps, keep, kernel.partial_bytes, 64)
    for layer, (k, v) in enumerate(slabs):
        job.point(NodeId(2 + 2 * layer), k.address)
        job.point(NodeId(3 + 2 * layer), v.address)
    return job


def reading(engine: Engine, kernel: ReadBytes, buffer: Buffer, keep: list[Buffer]) -> Job:
    step = Step(kernel, (Place(Slot(ROW)), Place(Slot(OUT))), Items(buffer.nbytes // BLOCK), (), "read")
    job = job_of(engine, [step], keep, 0, 0)
    job.point(ROW, buffer.address)
    return job


def job_of(engine: Engine, steps: list[Step], keep: list[Buffer], arena: int, counters: int) -> Job:
    module = Module(engine.isa)
    steps[0].kernel.emit(module)
    native = compile_module(module.text(), engine.isa, None)
    places = [allocate(nbytes) for nbytes in (arena, counters, 1 << 16, 1 << 16)]
    keep += places
    address = native.address(steps[0].kernel.symbol)
    image = Image.of(Tape(tuple(steps), arena, counters), [address] * len(steps))
    job = Job(image, places[0].address, places[1].address)
    job.point(ROW, places[2].address)
    job.point(OUT, places[3].address)
    return job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depth", type=int, default=7000)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--dtype", choices=tuple(KV_DTYPES), default="f16")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--huge", action="store_true", help="slabs and buffers on huge pages")
    options = parser.parse_args()

    engine = Engine(select(options.isa), None, options.threads)
    kv = KV_DTYPES[options.dtype]
    dim, depth = options.dim, options.depth
    kernel = AttendOne(
        options.heads, options.kv_heads, dim, dim, depth, kv, 1 / math.sqrt(dim),
        rot=dim // 2 * 2, q_rope=True, k_rope=True, write=True,
    )  # fmt: skip
    some = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
    slabs = [
        tuple(slab_of(slab, some, options.huge) for slab in (kernel.k, kernel.v))
        for _ in range(options.layers)
    ]
    nbytes = options.layers * 2 * options.kv_heads * depth * kv.row_bytes(dim)
    plain = filled(nbytes // BLOCK * BLOCK, options.huge)
    keep: list[Buffer] = []
    jobs = {f"read, {n} streams": reading(engine, ReadBytes(n), plain, keep) for n in (1, 4)}
    jobs["attention"] = attention(engine, kernel, depth, slabs, keep)
    untimed = replace(kernel, write=False)
    jobs["without writes"] = attention(engine, replace(untimed, k_rope=False), depth, slabs, keep)
    speeds: dict[str, list[float]] = {name: [] for name in jobs}
    pool, scratch = engine.pool, kernel.scratch_bytes
    for _ in range(options.rounds + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            pool.run(job.address, scratch)
            speeds[name].append(nbytes / (time.perf_counter() - start) / 1e9)
            assert not job.error.any()
    print(f"{engine.isa.name}, {options.threads} threads, {nbytes / 1e6:.0f} MB")
    loops = [found for name, found in speeds.items() if "read" in name]
    best = [max(pair) for pair in zip(*loops, strict=True)][1:]
    for name, found in speeds.items():
        ratio = statistics.median(a / b for a, b in zip(found[1:], best, strict=True))
        top = max(found[1:]) / max(best)
        speed = f"{statistics.median(found[1:]):6.1f} GB/s"
        print(f"{name:16} {speed}  {ratio:5.2f} of reading, best rounds {top:5.2f}")


if __name__ == "__main__":
    main()
