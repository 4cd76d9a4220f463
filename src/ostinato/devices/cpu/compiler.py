"""From LLVM IR to native functions: parse, verify, optimise, emit an object, link it into the process.

IR names no triple and no absolute address; what it calls outside itself are functions of the C library. An
object depends on the IR and the instruction set alone, so `code_cache` keeps it for the next process.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass, field
from typing import Any

from ostinato.devices.cpu import isa as isas
from ostinato.devices.cpu import llvm
from ostinato.devices.cpu.code_cache import CodeCache
from ostinato.devices.cpu.isa import Isa
from ostinato.errors.cpu import NativeCodeRefused, NativeFunctionMissing, NativeSymbolMissing


@dataclass(frozen=True, eq=False)
class NativeModule:
    """Compiled functions in this process, there until it ends. `cached`: the object came from the disk."""

    key: str
    nbytes: int
    cached: bool
    _engine: Any = field(repr=False)

    def address(self, name: str) -> int:
        """The address of the function `name`. Raises NativeFunctionMissing."""
        address = self._engine.get_function_address(name)
        if not address:
            raise NativeFunctionMissing(name)
        return int(address)


# Both for the life of the process: a thread may be asleep inside a function when its last user lets go.
_loaded: dict[str, NativeModule] = {}
_compiling = threading.Lock()


def compile_module(ir: str, isa: Isa, cache: CodeCache | None) -> NativeModule:
    """The functions that `ir` defines, compiled for `isa` unless this process or `cache` has them already.

    Raises NativeCodeRefused (LLVM doesn't accept the IR), NativeSymbolMissing (it calls a function that isn't
    there), InstructionSetMissing (this CPU can't run it), NativeCompilerMissing.
    """
    isas.require(isa)
    key = CodeCache.key_of(ir, isa)
    with _compiling:  # LLVM's binding has one lock of its own: compiling side by side would gain nothing
        module = _loaded.get(key)
        if module is None:
            kept = cache.get(key) if cache is not None else None
            data = kept if kept is not None else _emit(ir, isa)
            module = NativeModule(key, len(data), kept is not None, _link(data, isa))
            if kept is None and cache is not None:
                cache.put(key, data)
            _loaded[key] = module
        return module


def assembly(ir: str, isa: Isa) -> str:
    """The assembly that `compile_module` would make, also for a set that this CPU lacks."""
    machine = _target_machine(isa)
    return str(machine.emit_assembly(_optimised(ir, machine)))


def _emit(ir: str, isa: Isa) -> bytes:
    machine = _target_machine(isa)
    return bytes(machine.emit_object(_optimised(ir, machine)))


def _target_machine(isa: Isa) -> Any:
    target = llvm.binding().Target.from_triple(llvm.triple())
    # "jitdefault": code and constants may lie anywhere, so nothing relies on where the system puts them.
    return target.create_target_machine(
        cpu=isa.cpu, features=isa.features, opt=3, codemodel="jitdefault", jit=True
    )


def _optimised(ir: str, machine: Any) -> Any:
    """The verified module after O2. Kernels bring their own vectors and unrolling; LLVM adds none."""
    binding = llvm.binding()
    try:
        # A context of its own: types of one plan neither rename nor outlive those of another.
        module = binding.parse_assembly(ir, binding.create_context())
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise NativeCodeRefused(str(error).strip()) from error
    tuning = binding.create_pipeline_tuning_options(2)
    tuning.loop_vectorization = False
    tuning.slp_vectorization = False
    tuning.loop_unrolling = False
    passes = binding.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(module, passes)
    return module


def _link(data: bytes, isa: Isa) -> Any:
    binding = llvm.binding()
    engine = binding.create_mcjit_compiler(
        binding.parse_assembly("", binding.create_context()), _target_machine(isa)
    )
    object_file = binding.ObjectFileRef.from_data(data)
    require_symbols(object_file)
    engine.add_object_file(object_file)
    engine.finalize_object()
    return engine


def require_symbols(object_file: Any) -> None:
    """The guard of linking: without it, a call to a function that isn't there is a call to address 0.

    Raises NativeSymbolMissing. The first engine of a process must be there: it is what opens the C library.
    """
    sections = {section.name(): section.data() for section in object_file.sections() if section.size()}
    missing = [
        name
        for name in _undefined(sections.get(b".symtab", b""), sections.get(b".strtab", b""))
        if llvm.binding().address_of_symbol(name) is None
    ]
    if missing:
        raise NativeSymbolMissing(tuple(missing))


def _undefined(symtab: bytes, strtab: bytes) -> list[str]:
    """What an ELF object needs from elsewhere (Elf64_Sym: name, info, other, section, value, size)."""
    offsets = [
        name for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", symtab) if name and not section
    ]
    return [strtab[offset : strtab.index(b"\0", offset)].decode() for offset in offsets]
