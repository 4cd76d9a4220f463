"""IR becomes functions of this process, once."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import irs
import numpy as np
import pytest

from ostinato.devices.cpu import compiler, isa
from ostinato.devices.cpu.code_cache import CodeCache
from ostinato.devices.cpu.compiler import compile_module
from ostinato.devices.cpu.isa import ISAS
from ostinato.errors import (
    InstructionSetMissing,
    NativeCodeRefused,
    NativeFunctionMissing,
    NativeSymbolMissing,
)
from sabotage import goes_red, nothing

BEST = isa.select("generic")
GETPID = {"x86_64": 39, "aarch64": 172}


@pytest.fixture(autouse=True)
def _a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is loaded yet."""
    monkeypatch.setattr(compiler, "_loaded", {})


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The IR that was compiled, in order."""
    seen: list[str] = []
    emit = compiler._emit

    def count(ir: str, isa: Any) -> bytes:
        seen.append(ir)
        return emit(ir, isa)

    monkeypatch.setattr(compiler, "_emit", count)
    return seen


def call(module: compiler.NativeModule, name: str, *arguments: int) -> int:
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))
    return int(kind(module.address(name))(*arguments))


def test_every_set_that_this_cpu_has_computes_the_same(tmp_path: Path) -> None:
    def aligned() -> np.ndarray:
        buffer = np.zeros(32, np.float32)
        start = (-buffer.ctypes.data % 64) // 4
        return buffer[start : start + 16]

    for one in ISAS.values():
        if not one.requires <= isa.host_features():
            continue
        module = compile_module(irs.MULTIPLY_ADD, one, None)
        p, q = aligned(), aligned()
        p[:], q[:] = np.linspace(-3, 7, 16), np.linspace(0.1, 9, 16)
        expected = p * q + p
        call(module, "multiply_add", p.ctypes.data, q.ctypes.data)
        assert (p == expected).all(), one.name


@pytest.mark.skipif(os.uname().machine not in GETPID, reason="a system call by number")
def test_what_the_thread_pool_calls_is_there() -> None:
    module = compile_module(irs.PROCESS_ID, BEST, None)
    assert call(module, "process_id", GETPID[os.uname().machine]) == os.getpid()


def test_a_module_is_compiled_and_loaded_once(emitted: list[str]) -> None:
    modules: list[compiler.NativeModule] = []
    threads = [
        threading.Thread(target=lambda: modules.append(compile_module(irs.constant(7), BEST, None)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(modules) == 8
    assert len(set(map(id, modules))) == len(emitted) == 1
    assert call(modules[0], "answer") == 7


def test_modules_with_functions_of_one_name_stay_apart() -> None:
    first, second = (compile_module(irs.constant(value), BEST, None) for value in (1, 2))
    assert (call(first, "answer"), call(second, "answer")) == (1, 2)


def test_a_second_process_compiles_nothing(
    tmp_path: Path, emitted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CodeCache(tmp_path / "code")
    first = compile_module(irs.constant(5), BEST, cache)
    assert (first.cached, len(emitted)) == (False, 1)
    monkeypatch.setattr(compiler, "_loaded", {})
    second = compile_module(irs.constant(5), BEST, cache)
    assert (second.cached, len(emitted)) == (True, 1)
    assert call(second, "answer") == 5
    assert (first.key, first.nbytes) == (second.key, second.nbytes)


def test_damaged_code_is_compiled_again(tmp_path: Path, emitted: list[str], monkeypatch) -> None:
    cache = CodeCache(tmp_path / "code")
    compile_module(irs.constant(5), BEST, cache)
    (entry,) = (tmp_path / "code").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(whole[:-20] + bytes(20))
    monkeypatch.setattr(compiler, "_loaded", {})
    assert call(compile_module(irs.constant(5), BEST, cache), "answer") == 5
    assert len(emitted) == 2
    assert entry.read_bytes() == whole


def test_a_function_that_is_not_there() -> None:
    module = compile_module(irs.constant(1), BEST, None)
    for name in ("nosuch", "syscall", ""):
        with pytest.raises(NativeFunctionMissing):
            module.address(name)


@pytest.mark.parametrize(
    ("ir", "words"),
    [
        ("define foo", "expected type"),
        ("define i64 @f() { ret i32 0 }", "i32"),
        ("define i64 @f(i1 %c) {\n br i1 %c, label %a, label %b\na:\n %x = add i64 1, 1\n br label %b\nb:\n "
         "ret i64 %x\n}", "dominate"),
    ],
    ids=["no IR", "wrong types", "not verified"],
)  # fmt: skip
def test_refused_code_says_what_llvm_says(ir: str, words: str) -> None:
    for attempt in (lambda: compile_module(ir, BEST, None), lambda: compiler.assembly(ir, BEST)):
        with pytest.raises(NativeCodeRefused, match=words):
            attempt()


CALLS_NOTHING = (
    "declare i64 @ostinato_nosuch()\ndefine i64 @f() {\n  %x = call i64 @ostinato_nosuch()\n  ret i64 %x\n}"
)


def check_a_function_that_the_process_lacks_is_refused() -> None:
    with pytest.raises(NativeSymbolMissing) as caught:
        compile_module(CALLS_NOTHING, BEST, None)
    assert caught.value.symbols == ("ostinato_nosuch",)


def test_code_that_calls_what_is_not_there_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch, compiler, "require_symbols", nothing, check_a_function_that_the_process_lacks_is_refused
    )


def test_code_for_another_cpu_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "host_features", lambda: frozenset({"sse2"}))

    def check() -> None:
        with pytest.raises(InstructionSetMissing):
            compile_module(irs.constant(3), ISAS["avx2"], None)

    goes_red(monkeypatch, isa, "require", nothing, check)


def python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


NO_LLVMLITE = "import sys\nsys.modules['llvmlite'] = None\n"


def test_without_llvmlite_the_error_names_the_other_device() -> None:
    told = python(
        NO_LLVMLITE + "from ostinato.devices.cpu import isa\n"
        "from ostinato.errors import NativeCompilerMissing\n"
        "try:\n    isa.select(None)\n"
        "except NativeCompilerMissing as error:\n"
        "    print(error, error.remedy, isinstance(error, ImportError))\n"
    )
    assert "llvmlite" in told
    assert "pip install" in told
    assert "--device reference" in told
    assert "True" in told


def test_without_llvmlite_everything_else_works() -> None:
    model = str(Path(__file__).parents[2] / "fixtures" / "tiny-llama-grouped.gguf")
    told = python(
        NO_LLVMLITE + "import ostinato\nfrom ostinato.cli import main\n"
        "llm = ostinato.LLM(sys.argv[1], device='reference')\n"
        "assert llm.generate('a', max_tokens=2) is not None\n"
        "assert main(['cache', 'show']) == 0\nprint('done')",
        model,
    )
    assert told.endswith("done\n")


def test_a_library_that_does_not_load_is_the_same_error() -> None:
    told = python(
        "import sys, types\n"
        "class Broken:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'llvmlite': raise OSError('no libLLVM here')\n"
        "sys.meta_path.insert(0, Broken())\n"
        "from ostinato.devices.cpu import llvm\nfrom ostinato.errors import NativeCompilerMissing\n"
        "try:\n    llvm.binding()\nexcept NativeCompilerMissing as error:\n    print(error)\n"
    )
    assert "no libLLVM here" in told


def test_where_no_memory_may_be_executable_the_error_says_so() -> None:
    told = python(
        "import llvmlite.binding as binding\n"
        "def refuse(): raise OSError(13, 'Permission denied')\n"
        "binding.check_jit_execution = refuse\n"
        "from ostinato.devices.cpu import llvm\nfrom ostinato.errors import NativeCodeForbidden\n"
        "try:\n    llvm.binding()\nexcept NativeCodeForbidden as error:\n    print(error, error.remedy)\n"
    )
    assert "Permission denied" in told
    assert "--device reference" in told
