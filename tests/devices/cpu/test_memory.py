"""Buffers of the CPU device: zero, aligned, untouched until used, alive as long as a view of them."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import pytest

from ostinato.devices.cpu.memory import HUGE_PAGE, allocate


def resident() -> int:
    """Bytes of physical memory that this process holds."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.mark.parametrize(
    "nbytes", [0, 1, 63, 4096, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1, 5 * HUGE_PAGE + 7]
)
@pytest.mark.parametrize("huge", [False, True])
def test_buffers_are_zero_aligned_and_writable(nbytes: int, huge: bool) -> None:
    buffer = allocate(nbytes, huge=huge)
    assert buffer.nbytes == nbytes
    assert buffer.array.shape == (nbytes,)
    assert buffer.address % 64 == 0
    if nbytes >= HUGE_PAGE:
        assert buffer.address % HUGE_PAGE == 0
    assert not buffer.array.any()
    buffer.array[:] = 255
    assert buffer.array.all()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_untouched_pages_cost_nothing() -> None:
    before = resident()
    buffer = allocate(512 << 20)
    buffer.array[256 << 20] = 1
    assert resident() - before < 64 << 20


def test_a_view_keeps_the_memory() -> None:
    view = allocate(3 * HUGE_PAGE).array[HUGE_PAGE : HUGE_PAGE + 8].view(np.int64)
    view[0] = 42
    gc.collect()
    others = [allocate(3 * HUGE_PAGE) for _ in range(8)]
    for each in others:
        each.array[:] = 255
    assert view[0] == 42


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_goes_back_when_the_last_view_does() -> None:
    before = resident()
    for _ in range(8):
        allocate(128 << 20).array[:] = 1
    assert resident() - before < 256 << 20


@pytest.mark.parametrize("nbytes", [1 << 60, 1 << 62, 1 << 70])
def test_refused_memory_is_a_memory_error(nbytes: int) -> None:
    with pytest.raises(MemoryError, match="refuses"):
        allocate(nbytes)
