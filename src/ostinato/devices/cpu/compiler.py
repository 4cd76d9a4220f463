"""From LLVM IR to native functions: parse, verify, optimise, emit an object, link it into the process.

IR names no triple and no absolute address; what it calls outside itself are functions of the C library. An
object depends on the IR and the instruction set alone, so `code_cache` keeps it for the next process.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ostinato.devices.cpu import isa as isas
from ostinato.devices.cpu import llvm, writers
from ostinato.devices.cpu.code_cache import CodeCache
from ostinato.devices.cpu.isa import Isa
from ostinato.errors.cpu import NativeCodeRefused, NativeFunctionMissing, NativeSymbolMissing


@dataclass(frozen=True, eq=False)
class NativeModule:
    """Compiled functions in this process, there until it ends. `cached`: the object came from the disk."""

    key: str
    nbytes: int
    cached: bool
    functions: frozenset[str]
    _engine: Any = field(repr=False)

    def address(self, name: str) -> int:
        """The address of the function `name`. Raises NativeFunctionMissing."""
        if name not in self.functions:  # LLVM may end the process over a name that isn't there
            raise NativeFunctionMissing(name)
        return int(self._engine.get_function_address(name))


_GLOBAL_FUNCTION = 1 << 4 | 2  # STB_GLOBAL, STT_FUNC

# Both for the life of the process: a thread may be asleep inside a function when its last user lets go.
_loaded: dict[str, NativeModule] = {}
_compiling = threading.Lock()


def compile_module(ir: str, isa: Isa, cache: CodeCache | None) -> NativeModule:
    """The functions that `ir` defines, compiled for `isa` unless this process or `cache` has them already.

    Raises NativeCodeRefused (LLVM doesn't accept the IR), NativeSymbolMissing (it calls a function that isn't
    there), InstructionSetMissing (this CPU can't run it), NativeCompilerMissing.
    """
    return _compiled(CodeCache.key_of([ir], isa), lambda: ir, isa, cache)


def compile_written(
    recipe: Sequence[object], write: Callable[[], str], isa: Isa, cache: CodeCache | None
) -> NativeModule:
    """The same of the IR that `write` returns, which isn't asked for where `cache` has the code.

    Args:
        recipe: What the IR is written by: values whose repr is all that it depends on, beside `isa` and the
            source of their classes.
    """
    written_by = None if cache is None else writers.digest_for(recipe)
    if written_by is None:
        return compile_module(write(), isa, cache)
    source = ["written", written_by, *map(repr, recipe)]
    return _compiled(CodeCache.key_of(source, isa), write, isa, cache)


def _compiled(key: str, write: Callable[[], str], isa: Isa, cache: CodeCache | None) -> NativeModule:
    isas.require(isa)
    with _compiling:  # LLVM's binding has one lock of its own: compiling side by side would gain nothing
        module = _loaded.get(key)
        if module is None:
            kept = cache.get(key) if cache is not None else None
            data = kept if kept is not None else _emit(write(), isa)
            module = NativeModule(key, len(data), kept is not None, *_link(data, isa))
            if kept is None and cache is not None:
                cache.put(key, data)
            _loaded[key] = module
        return module


def assembly(ir: str, isa: Isa) -> str:
    """The assembly that `compile_module` would make, also for a set of another CPU or architecture."""
    machine = _target_machine(isa)
    with _optimised(ir, machine) as module:
        return str(machine.emit_assembly(module))


def _emit(ir: str, isa: Isa) -> bytes:
    machine = _target_machine(isa)
    with _optimised(ir, machine) as module:
        return bytes(machine.emit_object(module))


def _target_machine(isa: Isa) -> Any:
    # "jitdefault": code and constants may lie anywhere, so nothing relies on where the system puts them.
    return llvm.target(isa.arch).create_target_machine(
        cpu=isa.cpu, features=isa.features, opt=3, codemodel="jitdefault", jit=True
    )


@contextlib.contextmanager
def _optimised(ir: str, machine: Any) -> Iterator[Any]:
    """The verified module after O2. Kernels bring their own vectors and unrolling; LLVM adds none."""
    binding = llvm.binding()
    # A context of its own: types of one plan neither rename nor outlive those of another. It is closed after
    # its module; the garbage collector might choose the other order.
    with binding.create_context() as context, _parsed(ir, context, machine) as module:
        tuning = binding.create_pipeline_tuning_options(2)
        tuning.loop_vectorization = False
        tuning.slp_vectorization = False
        tuning.loop_unrolling = False
        passes = binding.create_pass_builder(machine, tuning)
        passes.getModulePassManager().run(module, passes)
        yield module


@contextlib.contextmanager
def _parsed(ir: str, context: Any, machine: Any) -> Iterator[Any]:
    """Raises NativeCodeRefused with LLVM's own words."""
    try:
        module = llvm.binding().parse_assembly(ir, context)
    except RuntimeError as error:
        raise NativeCodeRefused(str(error).strip()) from error
    with module:
        try:
            module.triple = machine.triple
            module.data_layout = str(machine.target_data)
            module.verify()
        except RuntimeError as error:
            raise NativeCodeRefused(str(error).strip()) from error
        yield module


def _link(data: bytes, isa: Isa) -> tuple[frozenset[str], Any]:
    """(the functions that the object defines, the engine that holds them). Raises NativeSymbolMissing."""
    binding = llvm.binding()
    # The empty module is in the global context, which outlives every engine.
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _target_machine(isa))
    object_file = binding.ObjectFileRef.from_data(data)
    functions, needed = _symbols(object_file)
    require_symbols(needed)
    engine.add_object_file(object_file)
    engine.finalize_object()
    return functions, engine


def require_symbols(needed: frozenset[str]) -> None:
    """The guard of linking: without it, a call to a function that isn't there is a call to address 0.

    Raises NativeSymbolMissing. An engine must have been made before: it is what opens the C library.
    """
    missing = sorted(name for name in needed if llvm.binding().address_of_symbol(name) is None)
    if missing:
        raise NativeSymbolMissing(tuple(missing))


def _symbols(object_file: Any) -> tuple[frozenset[str], frozenset[str]]:
    """(the functions that an ELF object defines for others, the names that it needs from elsewhere)."""
    sections = {section.name(): section.data() for section in object_file.sections() if section.size()}
    strings = sections.get(b".strtab", b"")
    defined, needed = set(), set()
    # Elf64_Sym: name, info (binding and type), other, section (0: undefined), value, size.
    for offset, info, _, section, _, _ in struct.iter_unpack("<IBBHQQ", sections.get(b".symtab", b"")):
        name = strings[offset : strings.index(b"\0", offset)].decode()
        if name and not section:
            needed.add(name)
        elif info == _GLOBAL_FUNCTION:
            defined.add(name)
    return frozenset(defined), frozenset(needed)
