"""What can go wrong on the way from generated code to native functions."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors.base import OstinatoError

_ELSEWHERE = "--device reference runs without native code."


@dataclass(eq=False, repr=False)
class NativeCompilerMissing(OstinatoError, ImportError):
    """llvmlite, which compiles for the CPU, isn't installed or doesn't load, for `reason`."""

    reason: str

    def message(self) -> str:
        return f"the cpu device needs llvmlite, which doesn't load: {self.reason}"

    @property
    def remedy(self) -> str:
        return f"Install it (pip install llvmlite), or choose another device: {_ELSEWHERE}"


@dataclass(eq=False, repr=False)
class NativeCodeForbidden(OstinatoError, PermissionError):
    """The system lets this process make no memory executable, for `reason`."""

    reason: str

    def message(self) -> str:
        return f"the system runs no code that is made in memory: {self.reason}"

    @property
    def remedy(self) -> str:
        return f"Ask for executable memory (SELinux: execmem), or choose another device: {_ELSEWHERE}"


@dataclass(eq=False, repr=False)
class InstructionSetMissing(OstinatoError, ValueError):
    """Code for the instruction set `name` can't run here: this CPU lacks `missing`."""

    name: str
    missing: tuple[str, ...]
    usable: tuple[str, ...]

    def message(self) -> str:
        return f"this CPU can't run {self.name} code, it lacks {', '.join(self.missing)}"

    @property
    def remedy(self) -> str:
        return f"Unset OSTINATO_CPU, or choose one of {', '.join(self.usable)}."


@dataclass(eq=False, repr=False)
class NativeCodeRefused(OstinatoError, ValueError):
    """LLVM refused generated code, for `reason`: a fault of the kernel that wrote it."""

    reason: str

    def message(self) -> str:
        return f"LLVM refused the generated code: {self.reason}"

    @property
    def remedy(self) -> str:
        return f"Please report it; until it is mended, {_ELSEWHERE}"


@dataclass(eq=False, repr=False)
class NativeSymbolMissing(OstinatoError, LookupError):
    """Generated code calls functions that this process doesn't have; it was not loaded."""

    symbols: tuple[str, ...]

    def message(self) -> str:
        return f"generated code needs functions that aren't there: {', '.join(self.symbols)}"

    @property
    def remedy(self) -> str:
        return f"Please report it with the system's name and version; until it is mended, {_ELSEWHERE}"


@dataclass(eq=False, repr=False)
class NativeFunctionMissing(OstinatoError, LookupError):
    """A native module was asked for a function that it doesn't define."""

    name: str

    def message(self) -> str:
        return f"the native module defines no function {self.name!r}"


@dataclass(eq=False, repr=False)
class PoolAfterFork(OstinatoError, RuntimeError):
    """A child process ran what its parent had made: the parent's threads aren't there."""

    def message(self) -> str:
        return "this process is a fork of the one that loaded the model, whose worker threads it doesn't have"

    @property
    def remedy(self) -> str:
        return "Load the model after the fork, or start processes with multiprocessing's 'spawn'."


@dataclass(eq=False, repr=False)
class PoolClosed(OstinatoError, RuntimeError):
    """A run was asked for after the worker threads had stopped, as they do when the interpreter exits."""

    def message(self) -> str:
        return "the worker threads have stopped"

    @property
    def remedy(self) -> str:
        return "Run nothing while the interpreter exits."


@dataclass(eq=False, repr=False)
class SelfTestFailed(OstinatoError, ArithmeticError):
    """A product computed with the instruction set `name` isn't what it must be."""

    name: str
    expected: str
    got: str

    def message(self) -> str:
        return f"the {self.name} kernels compute wrong results here: {self.got} instead of {self.expected}"

    @property
    def remedy(self) -> str:
        return f"Force another set (OSTINATO_CPU=generic), or another device: {_ELSEWHERE}"
