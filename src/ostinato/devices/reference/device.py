"""The reference device itself: storage and packing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from ostinato.device.contract import HostArray, array_of, slab_encoding
from ostinato.device.encoded import EncodedTensor
from ostinato.device.packing import check_recipe
from ostinato.device.segment import Segment
from ostinato.device.storage import Part, Storage
from ostinato.device.traits import SlabLayout, Traits, WeightLayout, WritePath
from ostinato.devices.reference.kernels import KERNELS
from ostinato.devices.reference.program import ReferenceProgram, Threads
from ostinato.devices.reference.quantized import QuantizedSlab, sizes
from ostinato.errors.device import DeviceMismatch, NoKernel, OutOfDeviceMemory
from ostinato.errors.graph import BindingMismatch
from ostinato.formats.encodings import CODECS
from ostinato.ir import encoding as enc
from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding
from ostinato.ir.location import Location
from ostinato.ir.op import Op
from ostinato.ir.ops import COMPOSITES
from ostinato.ir.recipe import PackRecipe

DENSE = WeightLayout("dense", enc.F32)
"""Row-major float32, decoded once."""
LAYOUTS = MappingProxyType(dict.fromkeys(CODECS, DENSE))
KV_LAYOUTS = MappingProxyType(
    {
        **{kv: SlabLayout(kv, kv) for kv in (enc.F32, enc.F16)},
        enc.Q8_0: SlabLayout(enc.Q8_0, enc.Q8_0, (1, enc.Q8_0.block), (1, enc.Q8_0.block)),
    }
)

_OPS: frozenset[type[Op]] = frozenset([*KERNELS, *COMPOSITES])


class ReferenceDevice:
    """numpy on the host's memory. Any number of ordinals may be registered; each packs its own weights.

    A storage is one flat array; shapes come from the plan.
    """

    def __init__(
        self,
        ordinal: int = 0,
        write_path: WritePath = WritePath.DEVICE_OFFSET,
        threads: int | None = None,
    ) -> None:
        """`threads` are those of BLAS while this device runs. BLAS has one count for the whole process, so
        devices that run at the same time share what the first of them set."""
        self.location = Location("reference", ordinal)
        self._threads = Threads(threads)
        self.traits = Traits(
            ops=_OPS,
            dtypes=frozenset(DType),
            weight_layouts=LAYOUTS,
            vector_layouts=LAYOUTS,
            kv_layouts=KV_LAYOUTS,
            write_path=write_path,
            dynamic_rows=True,
            bit_contract=False,  # BLAS sums in an order that depends on the shape
            can_capture=True,
        )

    def allocate(self, elements: int, dtype: DType, encoding: Encoding) -> Storage:
        return self._storage(self._zeros(elements, dtype.numpy), dtype, encoding)

    def allocate_slab(self, shape: tuple[int, int, int, int], kv: Encoding, role: str) -> Storage:
        encoding, dtype = slab_encoding(self, kv, role), enc.element(kv)
        if encoding != enc.Q8_0:
            return self.allocate(prod(shape), dtype, encoding)
        values, scales = sizes(shape)
        parts = {"values": self._zeros(values, np.int8), "scales": self._zeros(scales, np.float16)}
        named = tuple(Part(role, array.nbytes, array) for role, array in parts.items())
        return Storage(self.location, dtype, encoding, named)

    def upload(self, array: HostArray, dtype: DType) -> Storage:
        storage = self._storage(self._room(np.empty, array.size, dtype.numpy), dtype, enc.plain(dtype))
        self.write(array_of(array, dtype), storage)
        return storage

    def write(self, array: HostArray, target: Storage) -> None:
        self._check(target)
        if target.encoding == enc.Q8_0:
            QuantizedSlab(target, array.shape)[...,] = array_of(array, target.dtype)
            return
        room = target.parts[0].data
        if array.size > room.size:
            raise BindingMismatch("the storage", "extent", f"{room.size} elements", f"{array.size} elements")
        room[: array.size] = array_of(array, target.dtype).reshape(-1)

    def download(self, storage: Storage, shape: tuple[int, ...]) -> HostArray:
        self._check(storage)
        if storage.encoding == enc.Q8_0:
            return QuantizedSlab(storage, shape).copy()
        copied: HostArray = storage.parts[0].data[: prod(shape)].reshape(shape).copy()
        return copied

    def view(self, storage: Storage, shape: tuple[int, ...]) -> HostArray | None:
        self._check(storage)
        if storage.encoding == enc.Q8_0:
            return None
        seen: HostArray = storage.parts[0].data[: prod(shape)].reshape(shape)
        seen.flags.writeable = False
        return seen

    def copy(self, source: Storage, target: Storage) -> None:
        self._check(source)
        self._check(target)
        for old, new in zip(target.parts, source.parts, strict=True):
            np.copyto(old.data, new.data)

    def pack(self, recipe: PackRecipe, tensors: Sequence[EncodedTensor]) -> Storage:
        """Decode to float32, rows in the recipe's order."""
        check_recipe(recipe, tensors, self.location)
        packed = self._room(np.empty, sum(prod(tensor.shape) for tensor in tensors), np.float32)
        at = 0
        for tensor in tensors:
            size = prod(tensor.shape)
            if tensor.encoding not in CODECS:
                raise NoKernel(
                    f"packing {tensor.name}", str(DType.F32), str(tensor.encoding), str(self.location)
                )
            rows = tensor.rows()
            CODECS[tensor.encoding].decode(rows, out=packed[at : at + size].reshape(rows.shape[0], -1))
            at += size
        if recipe.permutation is not None:
            order = recipe.row_order([tensor.shape[0] for tensor in tensors])
            packed = packed.reshape(len(order), -1)[order].reshape(-1)
        return self._storage(packed, DType.F32, DENSE.stored)

    def compile(self, segment: Segment) -> ReferenceProgram:
        return ReferenceProgram(segment, self._threads)

    def set_threads(self, count: int) -> None:
        """BLAS threads of every run from now on."""
        self._threads.count = count

    def _zeros(self, elements: int, dtype: npt.DTypeLike) -> HostArray:
        """calloc: the pages of a slab are mapped when they are first written."""
        return self._room(np.zeros, elements, dtype)

    def _room(self, make: Callable[..., HostArray], elements: int, dtype: npt.DTypeLike) -> HostArray:
        try:
            return make(elements, dtype)
        except (MemoryError, ValueError) as error:  # ValueError: more than an address can name
            raise OutOfDeviceMemory(str(self.location), elements * np.dtype(dtype).itemsize) from error

    def _storage(self, array: HostArray, dtype: DType, encoding: Encoding) -> Storage:
        return Storage(self.location, dtype, encoding, (Part("values", array.nbytes, array),))

    def _check(self, storage: Storage) -> None:
        if storage.location != self.location:
            raise DeviceMismatch("the storage", str(self.location), str(storage.location))
