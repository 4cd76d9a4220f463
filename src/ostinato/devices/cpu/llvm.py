"""llvmlite, loaded when it is first needed: `import ostinato` and the other devices never load it."""

from __future__ import annotations

import functools
import threading
from typing import Any

from ostinato.errors.cpu import NativeCodeForbidden, NativeCompilerMissing

_first = threading.Lock()


def binding() -> Any:
    """`llvmlite.binding`, ready to compile for this machine.

    Raises NativeCompilerMissing without llvmlite, NativeCodeForbidden where no memory may be executable.
    """
    with _first:
        return _initialised()


def versions() -> tuple[str, str]:
    """(llvmlite's version, LLVM's), as in ("0.50.0", "22.1.0"). Raises what `binding` does."""
    llvm = binding()
    import llvmlite

    return llvmlite.__version__, ".".join(map(str, llvm.llvm_version_info))


def triple() -> str:
    """The target triple of this process. Raises what `binding` does."""
    return str(binding().get_process_triple())


def target(arch: str) -> Any:
    """LLVM's target for code of `arch`: that of this process where it is of that architecture, or none is
    named; elsewhere Linux's, whose code can only be looked at. Raises what `binding` does."""
    llvm, own = binding(), triple()
    if not arch or own.partition("-")[0].replace("arm64", "aarch64") == arch:
        return llvm.Target.from_triple(own)
    _know_all()
    return llvm.Target.from_triple(f"{arch}-unknown-linux-gnu")


@functools.cache
def _know_all() -> None:
    llvm = binding()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@functools.cache
def _initialised() -> Any:
    try:
        import llvmlite.binding as llvm
    except (ImportError, OSError) as error:  # OSError: the package is there, its library doesn't load
        raise NativeCompilerMissing(str(error)) from error
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    try:
        llvm.check_jit_execution()
    except OSError as error:
        raise NativeCodeForbidden(error.strerror or str(error)) from error
    return llvm
