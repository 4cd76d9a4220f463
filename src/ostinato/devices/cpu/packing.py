"""Weights into their packed forms, by native code on all threads of the pool."""

from __future__ import annotations

from collections.abc import Sequence
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

ROWS, OUT = NodeId(0), NodeId(1)


def pack(
    recipe: PackRecipe, tensors: Sequence[EncodedTensor], location: Location, engine: Engine, heap: Heap
) -> tuple[Encoding, Buffer]:
    """The packed weight and its encoding. Raises BindingMismatch, NoKernel, OutOfDeviceMemory."""
    check_recipe(recipe, tensors, location)
    for tensor in tensors:
        if tensor.encoding not in PACKED:
            raise NoKernel(f"packing {tensor.name}", str(DType.F32), str(tensor.encoding), str(location))
    order = recipe.row_order([tensor.shape[0] for tensor in tensors])
    if recipe.layout == VECTOR:
        return enc.F32, _vector(tensors, order, location, heap)
    form = PACKED[tensors[0].encoding]
    if any(PACKED[tensor.encoding] != form for tensor in tensors) or form.name != recipe.layout:
        raise NoKernel(f"packing {' + '.join(recipe.names)}", str(DType.F32), recipe.layout, str(location))
    return form.stored, _matrix(form, tensors, order, location, engine, heap)


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
    n = sum(prod(tensor.shape[:-1]) for tensor in tensors)
    sources = [_encoded_rows(form, tensor) for tensor in tensors]
    rows = np.concatenate([addresses for addresses, _ in sources])[order]
    table = np.zeros(groups(n) * GROUP, np.int64)
    table[:n] = rows
    buffer = _room(heap, form.packed_bytes(n, k), location)

    kernel = Pack(form.source.name, k)
    places = (Place(Slot(ROWS)), Place(Slot(OUT)))
    step = Step(kernel, places, Items(groups(n)), (places[1],), "pack")
    tape = Tape((step,), 0, 0)
    job = Job(Image.of(tape, [engine.address(kernel)]))
    job.point(ROWS, table.ctypes.data)
    job.point(OUT, buffer.address)
    engine.pool.run(job.address, tape.scratch_bytes)
    return buffer


def _encoded_rows(
    form: PackedForm, tensor: EncodedTensor
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """The address of each row's bytes, in the model's order, and the array that holds them."""
    if form.reads != tensor.encoding:  # decoded by its codec, exactly
        decoded = np.ascontiguousarray(CODECS[tensor.encoding].decode(tensor.rows()))
        raw: npt.NDArray[np.uint8] = decoded.view(np.uint8).reshape(decoded.shape[0], -1)
        order = None
    elif tensor.stored is not None:
        raw, order = np.ascontiguousarray(tensor.rows()), None
    else:
        raw, order = tensor.raw.reshape(-1, tensor.encoding.row_bytes(tensor.shape[-1])), tensor.row_order
    first, stride = raw.ctypes.data, raw.strides[0]
    numbers = np.arange(raw.shape[0]) if order is None else order
    return first + stride * numbers.astype(np.int64), raw


def _room(heap: Heap, nbytes: int, location: Location) -> Buffer:
    try:
        return heap.take(nbytes)
    except MemoryError as error:
        raise OutOfDeviceMemory(str(location), nbytes) from error
