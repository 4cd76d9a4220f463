"""The reference device itself: storage and packing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import MappingProxyType

import numpy as np

from ostinato.device.contract import HostArray, array_of
from ostinato.device.encoded import EncodedTensor
from ostinato.device.segment import Segment
from ostinato.device.storage import Part, Storage
from ostinato.device.traits import Traits, WeightLayout, WritePath
from ostinato.devices.reference.kernels import KERNELS
from ostinato.devices.reference.program import ReferenceProgram, Threads
from ostinato.errors.device import DeviceMismatch, NoKernel
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
        self.location = Location("reference", ordinal)
        self._threads = Threads(threads)
        self.traits = Traits(
            ops=_OPS,
            dtypes=frozenset(DType),
            weight_layouts=MappingProxyType(dict.fromkeys(CODECS, DENSE)),
            kv_dtypes=(DType.F32, DType.F16),
            write_path=write_path,
            dynamic_rows=True,
            bit_contract=False,  # BLAS sums in an order that depends on the shape
            can_capture=True,
        )

    def allocate(self, elements: int, dtype: DType, encoding: Encoding) -> Storage:
        # calloc: the pages of a slab are mapped when they are first written
        return self._storage(np.zeros(elements, dtype.numpy), dtype, encoding)

    def upload(self, array: HostArray, dtype: DType) -> Storage:
        return self._storage(array_of(array, dtype).reshape(-1).copy(), dtype, enc.plain(dtype))

    def download(self, storage: Storage, shape: tuple[int, ...]) -> HostArray:
        self._check(storage)
        copied: HostArray = storage.parts[0].data[: prod(shape)].reshape(shape).copy()
        return copied

    def copy(self, source: Storage, target: Storage) -> None:
        self._check(source)
        self._check(target)
        np.copyto(target.parts[0].data, source.parts[0].data)

    def pack(self, recipe: PackRecipe, tensors: Sequence[EncodedTensor]) -> Storage:
        """Decode to float32, one tensor's rows after another's."""
        packed = np.empty(sum(prod(tensor.shape) for tensor in tensors), np.float32)
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
        return self._storage(packed, DType.F32, DENSE.stored)

    def compile(self, segment: Segment) -> ReferenceProgram:
        return ReferenceProgram(segment, self._threads)

    def set_threads(self, count: int) -> None:
        """BLAS threads of every run from now on."""
        self._threads.count = count

    def _storage(self, array: HostArray, dtype: DType, encoding: Encoding) -> Storage:
        return Storage(self.location, dtype, encoding, (Part("values", array.nbytes, array),))

    def _check(self, storage: Storage) -> None:
        if storage.location != self.location:
            raise DeviceMismatch("the storage", str(self.location), str(storage.location))
