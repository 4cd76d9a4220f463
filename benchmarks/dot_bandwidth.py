"""How fast one-row products read their weights, beside a loop that only reads.

    python benchmarks/dot_bandwidth.py [--isa avx2] [--threads 2] [--mbytes 128] [--k 2048] [form ...]

Each round runs the read loop and then every form over buffers larger than the caches, all threads at once.
The table has medians over the rounds: GB/s, and the ratio to the read loop of the same round. The memory of a
shared machine drifts by a factor of two within minutes, so only the ratios compare between runs.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ostinato.devices.cpu.compiler import compile_module
from ostinato.devices.cpu.emit.builder import Function, Module, Value
from ostinato.devices.cpu.emit.types import I64
from ostinato.devices.cpu.isa import select
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.kernels.pack import Pack
from ostinato.devices.cpu.kernels.product import Product
from ostinato.devices.cpu.memory import Buffer, allocate
from ostinato.devices.cpu.weights import FORMS, GROUP

_SIGNATURE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64
)
_PAGE = 4096


@dataclass(frozen=True)
class ReadLoop(Kernel):
    """Loads every byte once, in order; an item is 4 KiB."""

    @property
    def params(self) -> tuple[str, ...]:
        return ("w", "out")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        vector = I64.x(8)
        names = [f"x{j}" for j in range(4)]
        start = dict.fromkeys(names, f.zero(vector))
        for at, s in f.range(f["low"] * _PAGE, f["high"] * _PAGE, 256, **start):
            for j, name in enumerate(names):
                s[name] = s[name] ^ f.load(vector, args["w"], at + 64 * j)
        total = (s["x0"] ^ s["x1"]) ^ (s["x2"] ^ s["x3"])
        f.store(total, args["out"], f["thread"] * 64)


def packed(native: Callable[[Kernel], Callable[..., None]], form: str, groups: int, k: int) -> Buffer:
    """A weight of `groups` groups: four of random bytes, again and again."""
    found = FORMS[form]
    rows = 4 * GROUP
    raw = np.random.default_rng(0).integers(0, 256, (rows, found.source.row_bytes(k)), np.uint8)
    table = raw.ctypes.data + np.arange(rows) * raw.shape[1]
    some = allocate(found.packed_bytes(rows, k))
    cells = np.array([table.ctypes.data, some.address], np.int64)
    pack = Pack(found.source.name, k)
    scratch = np.zeros(pack.scratch_bytes, np.uint8)
    native(pack)(cells.ctypes.data, 0, 4, scratch.ctypes.data, 0)
    weight = allocate(groups * found.group_bytes(k), huge=True)
    weight.array.reshape(-1, some.nbytes)[:] = some.array
    return weight


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("forms", nargs="*", default=list(FORMS))
    parser.add_argument("--isa")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--mbytes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--k", type=int, default=2048)
    options = parser.parse_args()

    isa = select(options.isa)
    target = options.mbytes << 20
    counts = {f: target // FORMS[f].group_bytes(options.k) // 4 * 4 for f in options.forms}
    products = {f: Product(f, options.k, counts[f] * GROUP) for f in options.forms}
    module = Module(isa)
    for kernel in (
        ReadLoop(),
        *products.values(),
        *(Pack(FORMS[f].source.name, options.k) for f in products),
    ):
        kernel.emit(module)
    code = compile_module(module.text(), isa, None)

    def native(kernel: Kernel) -> Callable[..., None]:
        return _SIGNATURE(code.address(kernel.symbol))

    row = np.zeros(8 * options.k + 4096, np.uint8)  # what stands in it changes no timing
    jobs: dict[str, tuple[Callable[..., None], np.ndarray, int, int]] = {}
    alive: list[object] = [row]
    for name, kernel in products.items():
        weight = packed(native, name, counts[name], options.k)
        out = allocate(4 * GROUP * counts[name])
        if not jobs:  # the read loop reads the first form's bytes
            cells, pages = np.array([weight.address, out.address], np.int64), weight.nbytes // _PAGE
            jobs["read"] = native(ReadLoop()), cells, pages, pages * _PAGE
        cells = np.array([row.ctypes.data, weight.address, out.address], np.int64)
        jobs[name] = native(kernel), cells, counts[name], weight.nbytes
        alive += [weight, out]

    gate = threading.Barrier(options.threads + 1)
    current: list[str | None] = [None]

    def work(thread: int) -> None:
        while True:
            gate.wait()
            if current[0] is None:
                return
            function, cells, items, _ = jobs[current[0]]
            low, high = (items * t // options.threads for t in (thread, thread + 1))
            for _ in range(options.passes):
                function(cells.ctypes.data, low, high, 0, thread)
            gate.wait()

    threads = [threading.Thread(target=work, args=(t,), daemon=True) for t in range(options.threads)]
    for each in threads:
        each.start()
    speeds: dict[str, list[float]] = {name: [] for name in jobs}
    for round_ in range(options.rounds + 1):
        for name, (_, _, _, nbytes) in jobs.items():
            current[0] = name
            gate.wait()
            start = time.perf_counter()
            gate.wait()
            if round_:
                speeds[name].append(options.passes * nbytes / (time.perf_counter() - start) / 1e9)
    current[0] = None
    gate.wait()

    print(f"{isa.name}, {options.threads} threads, {options.mbytes} MiB, k = {options.k}")
    for name, found in speeds.items():
        ratio = statistics.median(a / b for a, b in zip(found, speeds["read"], strict=True))
        print(f"{name:10} {statistics.median(found):6.1f} GB/s  {ratio:5.2f} of the read loop")


if __name__ == "__main__":
    main()
