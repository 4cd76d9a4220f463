"""Compile kernels and call them over numpy arrays, for each instruction set that this machine has."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence

import numpy as np

from devices.cpu.bit_contract import breaches
from ostinato.devices.cpu.compiler import compile_module
from ostinato.devices.cpu.emit.builder import Module
from ostinato.devices.cpu.isa import ISAS, Isa, host_features
from ostinato.devices.cpu.kernels.kernel import Kernel

HOST_ISAS = [isa for isa in ISAS.values() if isa.requires <= host_features()]
_SIGNATURE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64
)


def written(isa: Isa, kernels: Sequence[Kernel]) -> str:
    """The kernels' IR, as one module."""
    module = Module(isa)
    for kernel in kernels:
        kernel.emit(module)
    return module.text()


class Kernels:
    """The given kernels, each compiled when it is first run. `run` takes an argument cell for each of the
    kernel's params: an array for its address, or a number."""

    def __init__(self, isa: Isa, kernels: Sequence[Kernel]) -> None:
        self.ir = written(isa, kernels)
        assert not breaches(self.ir), breaches(self.ir)
        self._alone = {kernel.symbol: written(isa, [kernel]) for kernel in kernels}
        self.isa = isa
        self._functions: dict[str, Callable[..., None]] = {}

    def run(
        self, kernel: Kernel, args: Sequence[np.ndarray | int], low: int, high: int, thread: int = 0
    ) -> None:
        assert len(args) == len(kernel.params), f"{kernel.params} for {len(args)} arguments"
        function = self._functions.get(kernel.symbol)
        if function is None:
            native = compile_module(self._alone[kernel.symbol], self.isa, None)
            function = _SIGNATURE(native.address(kernel.symbol))
            self._functions[kernel.symbol] = function
        cells = np.array([a.ctypes.data if isinstance(a, np.ndarray) else a for a in args], np.int64)
        scratch = aligned(kernel.scratch_bytes + 64, np.uint8)
        scratch[:] = 0xFF  # NaN in every float type: contents of scratch memory are undefined
        function(cells.ctypes.data, low, high, scratch.ctypes.data, thread)
        assert (scratch[kernel.scratch_bytes :] == 0xFF).all(), "wrote past its scratch memory"


def aligned(shape: int | tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    """Zeros at a multiple of 64 bytes."""
    count = int(np.prod(shape))
    raw = np.zeros(count * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)


_libc = ctypes.CDLL(None, use_errno=True)


def at_page_end(values: np.ndarray) -> np.ndarray:
    """A copy whose last byte is the last before a page that ends the process when it is touched."""
    size = -(-values.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, size + mmap.PAGESIZE)  # lives as long as the array that is a view of it
    whole = np.frombuffer(pages, np.uint8)
    guard = ctypes.c_void_p(whole.ctypes.data + size)
    assert _libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copy = whole[size - values.nbytes : size].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy
