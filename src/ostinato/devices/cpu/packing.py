"""Weights into their packed forms, by native code on all threads of the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import numpy.typing as npt

from ostinato.device.encoded import EncodedTensor
from ostinato.device.packing import check_recipe
from ostinato.devices.cpu.engine import Engine
from ostinato.devices.cpu.image import Image, Job
from ostinato.devices.cpu.kernels.pack import Pack
from ostinato.devices.cpu.memory import Buffer, Heap
from ostinato.devices.cpu.tape import Items, Place, Slot, Step, Tape
from ostinato.devices.cpu.weights import GROUP, PACKED, PackedForm, groups
from ostinato.errors.device import NoKernel, OutOfDeviceMemory
from ostinato.formats.encodings import CODECS
from ostinato.ir import encoding as enc
from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding
from ostinato.ir.location import Location
from ostinato.ir.recipe import PackRecipe
from ostinato.ir.shape import NodeId

VECTOR = "vector"
"""The layout of rank-1 weights: float32, one after another."""

PACKING = "2"
"""Raised whenever packing makes other bytes of the same weights: packed weights are kept on disk."""

ROWS, OUT = NodeId(0), NodeId(1)
_CONVERTED = 16 << 20
"""Bytes of float32 rows that are made at once where packing doesn't read a tensor's own bytes."""


def pack(
    recipe: PackRecipe, tensors: Sequence[EncodedTensor], location: Location, engine: Engine, heap: Heap
) -> tuple[Encoding, Buffer]:
    """The packed weight and its encoding. Raises BindingMismatch, NoKernel, OutOfDeviceMemory."""
    form = _form(recipe, tensors, location)
    order = recipe.row_order([tensor.shape[0] for tensor in tensors])
    if form is None:
        return enc.F32, _vector(tensors, order, location, heap)
    return form.stored, _matrix(form, tensors, order, location, engine, heap)


def extent(recipe: PackRecipe, tensors: Sequence[EncodedTensor], location: Location) -> tuple[Encoding, int]:
    """The packed weight's encoding and size, unpacked. Raises BindingMismatch, NoKernel."""
    form = _form(recipe, tensors, location)
    rows = len(recipe.row_order([tensor.shape[0] for tensor in tensors]))
    if form is None:
        return enc.F32, 4 * rows
    return form.stored, form.packed_bytes(rows, tensors[0].shape[-1])


def _form(recipe: PackRecipe, tensors: Sequence[EncodedTensor], location: Location) -> PackedForm | None:
    """How the weight is packed; None for a vector."""
    check_recipe(recipe, tensors, location)
    for tensor in tensors:
        if tensor.encoding not in PACKED:
            raise NoKernel(f"packing {tensor.name}", str(DType.F32), str(tensor.encoding), str(location))
    if recipe.layout == VECTOR:
        return None
    form = PACKED[tensors[0].encoding]
    if any(PACKED[tensor.encoding] != form for tensor in tensors) or form.name != recipe.layout:
        raise NoKernel(f"packing {' + '.join(recipe.names)}", str(DType.F32), recipe.layout, str(location))
    return form


def _vector(
    tensors: Sequence[EncodedTensor], order: npt.NDArray[np.intp], location: Location, heap: Heap
) -> Buffer:
    values = np.concatenate([CODECS[t.encoding].decode(t.rows()).reshape(-1) for t in tensors])
    buffer = _room(heap, 4 * values.size, location)
    buffer.array.view(np.float32)[:] = values[order]
    return buffer


def _matrix(
    form: PackedForm,
    tensors: Sequence[EncodedTensor],
    order: npt.NDArray[np.intp],
    location: Location,
    engine: Engine,
    heap: Heap,
) -> Buffer:
    k = tensors[0].shape[-1]
    buffer = _room(heap, form.packed_bytes(len(order), k), location)
    if all(_lies_as(form, tensor) for tensor in tensors):
        addresses = np.concatenate([_addresses(tensor) for tensor in tensors])
        _pack_rows(form, k, addresses[order], engine, buffer.address)
        return buffer
    # Rows that are first decoded, or encoded anew, are so a few groups at a time.
    step = max(1, _CONVERTED // (4 * k * GROUP))
    for first in range(0, groups(len(order)), step):
        rows = _converted(form, tensors, order[first * GROUP : (first + step) * GROUP])
        out = buffer.address + first * form.group_bytes(k)
        _pack_rows(form, k, rows.ctypes.data + rows.strides[0] * np.arange(len(rows)), engine, out)
    return buffer


def _pack_rows(form: PackedForm, k: int, addresses: npt.NDArray[np.int64], engine: Engine, out: int) -> None:
    """Whole groups at the address `out`, from the addresses of their rows' bytes."""
    count = groups(len(addresses))
    table = np.zeros(count * GROUP, np.int64)
    table[: len(addresses)] = addresses
    kernel = Pack(form.source.name, k)
    places = (Place(Slot(ROWS)), Place(Slot(OUT)))
    step = Step(kernel, places, Items(count), (places[1],), "pack")
    tape = Tape((step,), 0, 0)
    job = Job(Image.of(tape, [engine.address(kernel)]))
    job.point(ROWS, table.ctypes.data)
    job.point(OUT, out)
    engine.pool.run(job.address, tape.scratch_bytes)


def _lies_as(form: PackedForm, tensor: EncodedTensor) -> bool:
    """Whether the tensor's bytes are rows as packing reads them."""
    return tensor.stored is None and form.reads == tensor.encoding


def _addresses(tensor: EncodedTensor) -> npt.NDArray[np.int64]:
    """Of each row's bytes, in the model's order."""
    raw = tensor.raw.reshape(-1, tensor.encoding.row_bytes(tensor.shape[-1]))
    numbers = np.arange(len(raw)) if tensor.row_order is None else tensor.row_order
    return raw.ctypes.data + raw.strides[0] * numbers.astype(np.int64)


def _converted(
    form: PackedForm, tensors: Sequence[EncodedTensor], picked: npt.NDArray[np.intp]
) -> npt.NDArray[np.uint8]:
    """The `picked` of all tensors' rows, one after another, as packing reads them: uint8 `[rows, bytes]`."""
    k = tensors[0].shape[-1]
    found = np.empty((len(picked), form.reads.row_bytes(k)), np.uint8)
    start = 0
    for tensor in tensors:
        count = prod(tensor.shape[:-1])
        mine = (picked >= start) & (picked < start + count)
        numbers = picked[mine] - start
        numbers = numbers if tensor.row_order is None else tensor.row_order[numbers]
        rows = replace(tensor, shape=(len(numbers), k), row_order=numbers).rows()
        if form.reads != tensor.encoding:
            rows = CODECS[tensor.encoding].decode(rows).view(np.uint8)
        found[mine] = rows
        start += count
    return found


def _room(heap: Heap, nbytes: int, location: Location) -> Buffer:
    try:
        return heap.take(nbytes)
    except MemoryError as error:
        raise OutOfDeviceMemory(str(location), nbytes) from error
