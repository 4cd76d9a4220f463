"""Code is found again by what writes it: its source, read file by file, and what it is asked to write."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest

import ostinato
from ostinato.devices.cpu import compiler, writers
from ostinato.devices.cpu.code_cache import CodeCache
from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I64
from ostinato.devices.cpu.engine import Engine
from ostinato.devices.cpu.isa import ISAS, Isa, select
from ostinato.devices.cpu.kernels.kernel import Kernel
from sabotage import goes_red

ROOT = Path(ostinato.__file__).parent
NOT_CODE = ("ostinato.errors", "ostinato.host")
"""What is imported only to refuse something or to ask the system, and decides no instruction."""
WRITTEN: list[str] = []


@dataclass(frozen=True)
class Three(Kernel):
    """Writes 3, or what `number` says."""

    number: int = 3

    @property
    def params(self) -> tuple[str, ...]:
        return ("out",)

    def body(self, f: Function, args: dict[str, Value]) -> None:
        WRITTEN.append(repr(self))
        f.store(f.const(I64, self.number), args["out"])


Three.__module__ = "ostinato.devices.cpu.kernels.three"  # as one of the package's own


@dataclass(frozen=True)
class Strangers(Three):
    """Of a class whose source the package doesn't know."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a cache, as a new process finds it: nothing has been loaded yet."""
    monkeypatch.setattr(compiler, "_loaded", {})
    WRITTEN.clear()
    path = tmp_path / "code"
    path.mkdir(mode=0o700)
    return path


def started_anew(folder: Path, monkeypatch: pytest.MonkeyPatch, isa: Isa | None = None) -> Engine:
    monkeypatch.setattr(compiler, "_loaded", {})
    return Engine(isa or select(), CodeCache(folder), 1)


def test_a_second_start_writes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        started_anew(folder, monkeypatch).addresses([Three(), Three(4), Three()])
    assert list(WRITTEN) == [repr(Three()), repr(Three(4))]


def test_other_kernels_and_other_sets_are_other_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kernels in ([Three()], [Three(4)], [Three(4), Three()]):
        started_anew(folder, monkeypatch).addresses(kernels)
    assert len(WRITTEN) == 4
    started_anew(folder, monkeypatch, ISAS["generic"]).addresses([Three()])
    assert len(WRITTEN) == 5


def check_that_strangers_are_written_each_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WRITTEN.clear()
    for number, name in enumerate(("mine", "mine", "of_mine")):
        path = folder / name
        path.mkdir(mode=0o700, exist_ok=True)
        started_anew(path, monkeypatch).addresses([Three(), Strangers()])
        assert len(WRITTEN) == 2 * (number + 1)


def test_who_changes_a_kernel_of_their_own_gets_what_it_writes_now(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = iter([folder, tmp_path])
    goes_red(monkeypatch, writers, "_OURS", "",
             lambda: check_that_strangers_are_written_each_time(next(places), monkeypatch))  # fmt: skip


def check_that_other_source_writes_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WRITTEN.clear()
    for source in ("one", "another", "one"):
        with monkeypatch.context() as patch:
            patch.setattr(writers, "digest", lambda source=source: source)
            started_anew(folder, monkeypatch).addresses([Three(len(str(folder)))])
    assert len(WRITTEN) == 2


def test_other_source_writes_anew(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = iter([folder, tmp_path / "further" / "code"])
    (tmp_path / "further" / "code").mkdir(parents=True, mode=0o700)

    def key_of(source: list[str], isa: Isa, found=CodeCache.key_of) -> str:
        return found(["written", "", *source[2:]], isa)

    goes_red(
        monkeypatch, CodeCache, "key_of", staticmethod(key_of),
        lambda: check_that_other_source_writes_anew(next(places), monkeypatch),
    )  # fmt: skip


def test_without_source_or_without_a_cache_the_ir_itself_is_the_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "digest", lambda: None)
    for _ in range(2):
        started_anew(folder, monkeypatch).addresses([Three()])
    assert len(WRITTEN) == 2
    assert len(list(folder.iterdir())) == 1
    for _ in range(2):
        Engine(select(), None, 1).addresses([Three()])
    assert len(WRITTEN) == 4


def test_every_change_of_a_file_is_another_digest(tmp_path: Path) -> None:
    def found() -> str | None:
        return writers.digest_of([tmp_path])

    def write(name: str, text: str) -> str | None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        return found()

    assert found() is None
    digests = [write("a.py", "x = 1"), write("a.py", "x = 2"), write("b.py", ""), write("in/a.py", "")]
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    digests.append(found())
    assert len(set(digests)) == len(digests)
    assert write("a.pyc", "anything") == write("in/notes.txt", "anything") == digests[-1]
    assert write("c.py", "") == digests[-1]


def imported(name: str) -> Iterator[str]:
    """The modules of the package that a module imports while it is imported."""
    path = ROOT.parent.joinpath(*name.split("."))
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ostinato"):
            yield node.module or ""
            for each in (f"{node.module}.{alias.name}" for alias in node.names):
                where = ROOT.parent.joinpath(*each.split("."))
                if where.is_dir() or where.with_suffix(".py").exists():
                    yield each


def test_all_that_decides_what_kernels_are_is_digested() -> None:
    inside = tuple(f"ostinato.{package.replace('/', '.')}" for package in writers.PACKAGES)
    known = (*inside, *NOT_CODE)
    folders = [ROOT / "devices" / "cpu" / each for each in ("emit", "kernels", "weights")]
    todo = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        for folder in folders
        for path in folder.rglob("*.py")
    }
    assert len(todo) > 50
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        seen.add(name)
        todo |= set(imported(name)) - seen
    assert [name for name in seen if not any(f"{name}.".startswith(f"{each}.") for each in known)] == []


def test_the_package_can_digest_itself() -> None:
    assert files("ostinato").joinpath("devices/cpu").is_dir()
    assert len(writers.digest() or "") == 64
