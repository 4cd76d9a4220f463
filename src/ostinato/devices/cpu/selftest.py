"""Does the instruction set compute what it should? Asked once, before a device compiles its first segment."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ostinato.devices.cpu.engine import Engine
from ostinato.devices.cpu.image import Image, Job
from ostinato.devices.cpu.kernels.kernel import Kernel
from ostinato.devices.cpu.kernels.pack import Pack
from ostinato.devices.cpu.kernels.product import Product
from ostinato.devices.cpu.kernels.rows import INT8, RowSpec
from ostinato.devices.cpu.memory import Buffer, allocate
from ostinato.devices.cpu.tape import Items, Place, Slot, Step, Tape
from ostinato.devices.cpu.weights import GROUP, PACKED
from ostinato.errors.cpu import SelfTestFailed
from ostinato.formats.encodings import ENCODERS
from ostinato.ir import encoding as enc
from ostinato.ir.shape import NodeId

K = 64


def check(engine: Engine) -> None:
    """Pack a weight, round a row and multiply the two; every number is a small integer, so there is one right
    answer. Raises SelfTestFailed."""
    weight, row = _operands()
    got = _product(engine, weight, row)
    expected = weight @ row
    if not np.array_equal(got, expected):
        at = int(np.flatnonzero(got != expected)[0])
        raise SelfTestFailed(engine.isa.name, f"{expected[at]:g}", f"{got[at]:g}")


def _operands() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Integers -127 … 127, and 127 in each block of each row: the scale of all of them is 1."""
    numbers = (np.arange((GROUP + 1) * K) * 37 % 255 - 127).reshape(GROUP + 1, K).astype(np.float32)
    numbers[:, ::32] = 127
    return numbers[:GROUP], numbers[GROUP]


def _product(
    engine: Engine, weight: npt.NDArray[np.float32], row: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    form = PACKED[enc.Q8_0]
    encoded = ENCODERS[enc.Q8_0].encode(weight)
    rows = encoded.ctypes.data + encoded.strides[0] * np.arange(GROUP)
    table, packed = _buffer(rows.astype(np.int64)), allocate(form.packed_bytes(GROUP, K))
    x, out = _buffer(row), allocate(4 * GROUP)
    pack, product = Pack(form.source.name, K), Product(form.name, K, GROUP, prepare=RowSpec(K, rounding=INT8))
    addresses = engine.addresses([pack, product])  # in one module: that is found, or compiled, faster
    _run(engine, pack, addresses, {"rows": table, "out": packed})
    _run(engine, product, addresses, {"x": x, "w": packed, "out": out})
    return out.array.view(np.float32)


def _run(engine: Engine, kernel: Kernel, addresses: Mapping[str, int], buffers: Mapping[str, Buffer]) -> None:
    slots = {name: Slot(NodeId(i)) for i, name in enumerate(kernel.params)}
    args = tuple(Place(slots[name]) for name in kernel.params)
    tape = Tape((Step(kernel, args, Items(1), (), "self-test"),), 0, 0)
    job = Job(Image.of(tape, [addresses[kernel.symbol]]))
    for name, buffer in buffers.items():
        job.point(slots[name].node, buffer.address)
    engine.pool.run(job.address, tape.scratch_bytes)


def _buffer(values: npt.NDArray[np.float32] | npt.NDArray[np.int64]) -> Buffer:
    buffer = allocate(values.nbytes)
    buffer.array.view(values.dtype)[:] = values
    return buffer
