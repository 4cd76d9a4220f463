"""The CPU device for tests of what must survive: it fails after a given number of kernels, and whatever a run
has no right to read is NaN, or index -1: freed memory, and a run's arena before the run has written it.

Its kernels, plans and runs are the CPU device's own; nothing is late on it, so there are no late errors.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from devices.delayed import InjectedFailure
from ostinato.device.segment import Segment
from ostinato.device.storage import Part, Storage
from ostinato.device.traits import WritePath
from ostinato.devices.cpu import isa as isas
from ostinato.devices.cpu.device import CpuDevice
from ostinato.devices.cpu.engine import Engine
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.memory import Buffer
from ostinato.devices.cpu.program import CpuBound, CpuProgram
from ostinato.ir import DType
from ostinato.ir.encoding import Encoding
from ostinato.ir.shape import NodeId

STEPS = 1
"""The cell of a job's record that says how many steps it has."""


class KernelByKernel(Engine):
    """Each kernel in a module of its own. Most of the time of native tests is LLVM's, their plans have many
    kernels in common, and a process compiles the same IR once. An engine writes a kernel when it is first
    asked for it: a test that changes how kernels are written takes an engine of its own.

    No kernel calls another, so it is the same code: `devices/cpu/test_model_bits.py` compares.
    """

    def addresses(self, kernels: Iterable[Kernel]) -> Mapping[str, int]:
        return {
            kernel.symbol: super(KernelByKernel, self).addresses((kernel,))[kernel.symbol]
            for kernel in kernels
        }

    def _release_later(self) -> None:
        """Never: tests compile on, and others measure memory, of which another thread would take some."""


@cache
def engine(threads: int) -> Engine:
    """One for all devices of all tests, so that a kernel is written once."""
    return KernelByKernel(isas.select(), None, threads)


class FrailCpu(CpuDevice):
    """`fail_after` kernels from now the next one fails; those before it have done their work."""

    def __init__(
        self, ordinal: int = 0, write_path: WritePath = WritePath.DEVICE_OFFSET, threads: int = 2
    ) -> None:
        super().__init__(ordinal, write_path)
        self.engine = engine(threads)
        self.fail_after: int | None = None
        self.kernels = 0
        """Kernels run so far."""
        self.waits = 0
        """Runs begun so far."""

    def tick(self) -> None:
        """A run is about to begin; a test may put something in the way."""

    def compile(self, segment: Segment) -> FrailProgram:
        return FrailProgram(segment, self)

    def _room(self, nbytes: int, dtype: DType, encoding: Encoding) -> Storage:
        """Overwritten once the storage is gone."""
        storage = super()._room(nbytes, dtype, encoding)
        array = storage.parts[0].data.array
        handle = array[:]
        weakref.finalize(handle, _overwrite, array).atexit = False
        return replace(storage, parts=(Part("values", nbytes, Buffer(handle)),))


def _overwrite(array: np.ndarray) -> None:
    array[:] = 0xFF


class FrailProgram(CpuProgram):
    def __init__(self, segment: Segment, device: FrailCpu) -> None:
        super().__init__(segment, device.engine)
        self.device = device

    def bind(
        self, slots: Mapping[NodeId, Storage], workspace: Any, outputs: Mapping[NodeId, Storage]
    ) -> FrailBound:
        bound = super().bind(slots, workspace, outputs)
        bound.__class__ = FrailBound
        assert isinstance(bound, FrailBound)
        return bound


class FrailBound(CpuBound):
    def run_owned(self) -> None:
        device = self._program.device  # type: ignore[attr-defined]
        device.waits += 1
        device.tick()
        _overwrite(self._workspace.arena.array)
        steps, left = int(self._job.record[STEPS]), device.fail_after
        if left is None or left >= steps:
            device.fail_after = None if left is None else left - steps
            device.kernels += steps
            super().run_owned()
            return
        device.fail_after = None
        device.kernels += left
        self._job.record[STEPS] = left
        try:
            super().run_owned()
        finally:
            self._job.record[STEPS] = steps
        raise InjectedFailure
