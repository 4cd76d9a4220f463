"""How fast this machine reads memory, measured when it is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ostinato.devices.cpu.engine import Engine
from ostinato.devices.cpu.image import Image, Job
from ostinato.devices.cpu.kernels.read import BLOCK, ReadBytes
from ostinato.devices.cpu.memory import Buffer, allocate
from ostinato.devices.cpu.tape import Items, Place, Slot, Step, Tape
from ostinato.ir.shape import NodeId

LOOPS = tuple(ReadBytes(streams, ahead) for ahead in (0, 1024) for streams in (1, 4))
"""Which is best differs from machine to machine, and with what else runs on it."""
NBYTES = 256 << 20
"""Many times the last cache of most machines."""
BUFFER, OUT = NodeId(0), NodeId(1)


class ReadBandwidth:
    """Reads touched memory with as many threads as the engine has now, by several loops, and keeps the best.

    Two buffers of `nbytes`, with and without huge pages. `best`: bytes per second of the best read so far;
    `samples`: the best of each call of `sample`.
    """

    def __init__(
        self, engine: Engine, nbytes: int = NBYTES, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.best = 0.0
        self.samples: list[float] = []
        self._clock = clock
        self._pool = engine.pool
        even = self._pool.threads * max(loop.streams for loop in LOOPS)
        items = -(-nbytes // BLOCK // even) * even
        self.nbytes = items * BLOCK
        self._buffers = [allocate(self.nbytes, huge=huge) for huge in (True, False)]
        for buffer in self._buffers:
            buffer.array.view(np.int64)[:] = 1  # a page that was never written is no memory yet
        self._out = allocate(64 * self._pool.threads)
        self._jobs = [self._job(engine, loop, b, items) for loop in LOOPS for b in self._buffers]

    def _job(self, engine: Engine, kernel: ReadBytes, buffer: Buffer, items: int) -> Job:
        places = (Place(Slot(BUFFER)), Place(Slot(OUT)))
        step = Step(kernel, places, Items(items), (places[1],), "read")
        job = Job(Image.of(Tape((step,), 0, 0), [engine.address(kernel)]))
        job.point(BUFFER, buffer.address)
        job.point(OUT, self._out.address)
        return job

    def sample(self) -> float:
        """Read once by every loop: the best rate of this call, in bytes per second."""
        best = 0.0
        for job in self._jobs:
            start = self._clock()
            self._pool.run(job.address)
            best = max(best, self.nbytes / (self._clock() - start))
            assert self.read == self.nbytes // 8, "a loop left something out"
        self.samples.append(best)
        self.best = max(self.best, best)
        return best

    def repeated(self, passes: int) -> float:
        """The best loop's rate when each reads the buffer of huge pages `passes` times in a row, in bytes per
        second: what the caches keep from pass to pass counts."""
        best = 0.0
        for job in self._jobs[:: len(self._buffers)]:
            self._pool.run(job.address)
            start = self._clock()
            for _ in range(passes):
                self._pool.run(job.address)
            best = max(best, passes * self.nbytes / (self._clock() - start))
            assert self.read == self.nbytes // 8, "a loop left something out"
        return best

    @property
    def read(self) -> int:
        """How many of the buffer's numbers, which are all 1, the last loop has added up."""
        return int(self._out.array.view(np.int64)[:: 64 // 8].sum())
