"""The CPU device itself: storage, packing, compiling."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from types import MappingProxyType

from ostinato.device.contract import HostArray, array_of, slab_encoding
from ostinato.device.encoded import EncodedTensor
from ostinato.device.segment import Segment
from ostinato.device.storage import Part, Storage
from ostinato.device.traits import Traits, WeightLayout, WritePath
from ostinato.devices.cpu import isa as isas
from ostinato.devices.cpu import selftest
from ostinato.devices.cpu.bandwidth import ReadBandwidth
from ostinato.devices.cpu.code_cache import CodeCache
from ostinato.devices.cpu.engine import Engine
from ostinato.devices.cpu.lower import REGIONS
from ostinato.devices.cpu.memory import Buffer, Heap, allocate
from ostinato.devices.cpu.packing import PACKING, VECTOR, extent, pack
from ostinato.devices.cpu.profile import Recorder
from ostinato.devices.cpu.program import CpuProgram
from ostinato.devices.cpu.slabs import SlabGeometry, slab_kind, slab_layout
from ostinato.devices.cpu.weights import GROUP, PACKED
from ostinato.errors.device import DeviceMismatch, OutOfDeviceMemory
from ostinato.errors.graph import BindingMismatch
from ostinato.formats.encodings import CODECS
from ostinato.ir import encoding as enc
from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding
from ostinato.ir.location import Location
from ostinato.ir.op import Op
from ostinato.ir.ops import COMPOSITES, PRIMITIVES
from ostinato.ir.ops.product import SelectedMatMul
from ostinato.ir.ops.region import Region
from ostinato.ir.ops.slab import ReadPrefix
from ostinato.ir.recipe import PackRecipe

_WITHOUT_KERNEL: set[type[Op]] = {SelectedMatMul, ReadPrefix}
"""What only attention's definition uses; here attention is a kernel of its own."""

_OPS = frozenset[type[Op]]([*PRIMITIVES, *COMPOSITES, Region]) - _WITHOUT_KERNEL


class CpuDevice:
    """The processor, by generated kernels; weights and KV slabs lie as these like to read them."""

    def __init__(
        self,
        ordinal: int = 0,
        write_path: WritePath = WritePath.DEVICE_OFFSET,
        threads: int = 1,
        *,
        isa: isas.Isa | None = None,
        cache: CodeCache | None = None,
    ) -> None:
        """`isa` is by default the best that this machine has, or what OSTINATO_CPU names; without `cache`
        code is compiled anew in each process.

        Raises NativeCompilerMissing, InstructionSetMissing, InvalidSetting (OSTINATO_CPU).
        """
        self.location = Location("cpu", ordinal)
        self.engine = Engine(isa or isas.select(), cache, threads)
        self._weights = Heap()
        self._testing = threading.Lock()
        self._tested = False
        self.traits = Traits(
            ops=_OPS,
            dtypes=frozenset(DType),
            weight_layouts=MappingProxyType(
                {
                    source: WeightLayout(form.name, form.stored, form.rounding(self.engine.isa), GROUP)
                    for source, form in PACKED.items()
                }
            ),
            vector_layouts=MappingProxyType(dict.fromkeys(CODECS, WeightLayout(VECTOR, enc.F32))),
            kv_layouts=MappingProxyType({kv: slab_layout(kv) for kv in (enc.F16, enc.F32, enc.Q8_0)}),
            regions=frozenset(REGIONS),
            row_group=GROUP,
            write_path=write_path,
            dynamic_rows=True,
            bit_contract=True,
            can_capture=True,
        )

    def allocate(self, elements: int, dtype: DType, encoding: Encoding) -> Storage:
        return self._room(elements * dtype.nbytes, dtype, encoding)

    def allocate_slab(self, shape: tuple[int, int, int, int], kv: Encoding, role: str) -> Storage:
        encoding = slab_encoding(self, kv, role)
        return self._room(SlabGeometry.of(shape, kv, role).nbytes, enc.element(kv), encoding)

    def upload(self, array: HostArray, dtype: DType) -> Storage:
        storage = self._room(array.size * dtype.nbytes, dtype, enc.plain(dtype))
        self.write(array_of(array, dtype), storage)
        return storage

    def write(self, array: HostArray, target: Storage) -> None:
        self._check(target)
        room = target.parts[0].data.array
        kind = slab_kind(target.encoding)
        if kind is not None:
            SlabGeometry.of(array.shape, *kind).from_logical(array_of(array, target.dtype), room)
            return
        values = room.view(target.dtype.numpy)
        if array.size > values.size:
            raise BindingMismatch(
                "the storage", "extent", f"{values.size} elements", f"{array.size} elements"
            )
        values[: array.size] = array_of(array, target.dtype).reshape(-1)

    def download(self, storage: Storage, shape: tuple[int, ...]) -> HostArray:
        self._check(storage)
        room = storage.parts[0].data.array
        kind = slab_kind(storage.encoding)
        if kind is not None:
            return SlabGeometry.of(shape, *kind).to_logical(room)
        copied: HostArray = room.view(storage.dtype.numpy)[: prod(shape)].reshape(shape).copy()
        return copied

    def view(self, storage: Storage, shape: tuple[int, ...]) -> HostArray | None:
        """The elements where they lie, read-only; None for what has a layout of its own."""
        self._check(storage)
        if not storage.encoding.is_plain:
            return None
        values: HostArray = (
            storage.parts[0].data.array.view(storage.dtype.numpy)[: prod(shape)].reshape(shape)
        )
        values.flags.writeable = False
        return values

    def copy(self, source: Storage, target: Storage) -> None:
        self._check(source)
        self._check(target)
        target.parts[0].data.array[:] = source.parts[0].data.array

    def pack(self, recipe: PackRecipe, tensors: Sequence[EncodedTensor]) -> Storage:
        """Raises BindingMismatch, NoKernel, OutOfDeviceMemory."""
        encoding, buffer = pack(recipe, tensors, self.location, self.engine, self._weights)
        return Storage(self.location, DType.F32, encoding, (Part("values", buffer.nbytes, buffer),))

    @property
    def packing(self) -> str:
        """See `device.mapped.MapsWeights`. The same on every instruction set."""
        return f"cpu {PACKING} {sys.byteorder}"

    def packed_bytes(self, storage: Storage) -> HostArray:
        array: HostArray = storage.parts[0].data.array
        return array

    def adopt(self, recipe: PackRecipe, tensors: Sequence[EncodedTensor], data: HostArray) -> Storage:
        """Raises BindingMismatch, NoKernel."""
        encoding, nbytes = extent(recipe, tensors, self.location)
        if data.nbytes != nbytes:
            raise BindingMismatch(str(recipe), "extent", f"{nbytes} bytes", f"{data.nbytes} bytes")
        return Storage(self.location, DType.F32, encoding, (Part("values", nbytes, Buffer(data)),))

    def compile(self, segment: Segment) -> CpuProgram:
        """Raises NoKernel, and SelfTestFailed before any code of the device's is used."""
        self.self_test()
        return CpuProgram(segment, self.engine)

    def self_test(self) -> None:
        """Once: whether the kernels compute what they should. Raises SelfTestFailed."""
        with self._testing:
            if not self._tested:
                selftest.check(self.engine)
                self._tested = True

    def set_threads(self, count: int) -> None:
        """Threads of every run from now on; results don't depend on them."""
        self.engine.threads = count

    def read_bandwidth(self) -> ReadBandwidth:
        """See `device.measures.ReadsMemory`."""
        return ReadBandwidth(self.engine)

    @contextmanager
    def profiled(self) -> Iterator[Recorder]:
        """See `device.measures.Profiles`."""
        assert self.engine.recorder is None, "one profile at a time"
        self.engine.recorder = Recorder()
        try:
            yield self.engine.recorder
        finally:
            self.engine.recorder = None

    def _room(self, nbytes: int, dtype: DType, encoding: Encoding) -> Storage:
        try:
            buffer = allocate(nbytes)
        except MemoryError as error:
            raise OutOfDeviceMemory(str(self.location), nbytes) from error
        return Storage(self.location, dtype, encoding, (Part("values", nbytes, buffer),))

    def _check(self, storage: Storage) -> None:
        if storage.location != self.location:
            raise DeviceMismatch("the storage", str(self.location), str(storage.location))
