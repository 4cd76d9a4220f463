"""How fast this machine reads memory, measured when it is asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ostinato.devices.cpu.engine import Engine
from ostinato.devices.cpu.image import Image, Job
from ostinato.devices.cpu.kernels.read import BLOCK, ReadBytes
from ostinato.devices.cpu.memory import Buffer, allocate
from ostinato.devices.cpu.tape import Items, Place, Slot, Step, Tape
from ostinato.ir.shape import NodeId

STREAMS = (1, 4)
BUFFER, OUT = NodeId(0), NodeId(1)


@dataclass
class ReadBandwidth:
    """Reads touched memory with all of the engine's threads, by several loops; keeps the best of all.

    Two buffers, with and without huge pages. `nbytes` should be many times the last cache.
    """

    engine: Engine
    nbytes: int = 256 << 20
    best: float = 0.0
    """Bytes per second."""
    samples: list[float] = field(default_factory=list)
    """The best of each call of `sample`."""

    def __post_init__(self) -> None:
        self._buffers = [allocate(self.nbytes, huge=huge) for huge in (True, False)]
        for buffer in self._buffers:
            buffer.array[:] = 1
        self._out = allocate(64 * max(64, self.engine.threads))
        self._loops = [self._loop(streams, buffer) for streams in STREAMS for buffer in self._buffers]

    def _loop(self, streams: int, buffer: Buffer) -> Job:
        kernel = ReadBytes(streams)
        places = (Place(Slot(BUFFER)), Place(Slot(OUT)))
        step = Step(kernel, places, Items(self.nbytes // BLOCK), (places[1],), "read")
        job = Job(Image.of(Tape((step,), 0, 0), [self.engine.address(kernel)]))
        job.point(BUFFER, buffer.address)
        job.point(OUT, self._out.address)
        return job

    def sample(self) -> float:
        """Read once by every loop: the best rate of this call, in bytes per second."""
        pool = self.engine.pool
        best = 0.0
        for job in self._loops:
            start = time.perf_counter()
            pool.run(job.address, 0)
            best = max(best, self.nbytes / (time.perf_counter() - start))
        self.samples.append(best)
        self.best = max(self.best, best)
        return best
