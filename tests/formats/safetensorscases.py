"""Broken checkpoints, what the reader must say of each, and the check that it does."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from safetensorsbuilder import (
    INDEX,
    SINGLE,
    Files,
    sharded,
    small,
    write,
)

from ostinato.errors import OstinatoError
from ostinato.errors.formats import ModelFormatError
from ostinato.formats import mapping
from ostinato.formats.safetensors import Checkpoint, folder, guards

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
DEEP = b"[" * 100_000
# These guards need more than a folder's contents: test_safetensors_limits.py has them.
ALONE = {"check_text_size", "check_file_name", "check_folder", "check_not_shortened"}
FACTOR, SLACK = 64, 8 << 20  # memory: at most FACTOR bytes for one of JSON, and SLACK


@dataclass(frozen=True)
class Case:
    """A broken folder and what the reader must say of it; `guard` is the function that does.

    `fields` are the error's, `file` apart, which is a name in the folder.
    """

    name: str
    guard: str
    files: Files
    error: type[OstinatoError] = ModelFormatError
    file: str = ""
    fields: dict[str, object] = field(default_factory=dict)
    got: str = ""


def text(
    name: str, guard: str, file: str, data: bytes, where: str, at: int | None = None, got: str = ""
) -> Case:
    """A JSON file is wrong."""
    base = sharded() if file == INDEX else small()
    fields = {"field": where, "offset": at}
    return Case(f"{file}: {name}", guard, {**base, file: data}, file=file, fields=fields, got=got)


def head(
    name: str, guard: str, data: bytes, where: str, at: int | None = None, got: str = "", file: str = SINGLE
) -> Case:
    """A safetensors file is wrong."""
    return Case(
        name,
        guard,
        {"config.json": b"{}", file: data},
        file=file,
        fields={"field": where, "offset": at},
        got=got,
    )


def outcome(path: Path) -> Checkpoint | Exception:
    try:
        return Checkpoint.open(path)
    except Exception as error:
        return error


def expect_refusal(case: Case, path: Path) -> None:
    """The test of a case, also what a sabotaged guard must make fail."""
    write(path, case.files)
    error = outcome(path)
    assert type(error) is case.error, repr(error)
    where = str(path / case.file) if case.file else str(path)
    shown = error.fields()
    assert shown.get("file", shown.get("folder")) == where
    assert {name: shown[name] for name in case.fields} == case.fields
    if isinstance(error, ModelFormatError):
        assert error.expected
        assert error.got
        assert case.got in error.got
    assert error.remedy
    assert str(error).startswith(f"{where}: ")
    assert len(str(error)) < len(where) + 500
    assert str(error).isprintable()
    assert pickle.loads(pickle.dumps(error)).fields() == shown


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes that `work` and its result held at once."""
    tracemalloc.start()
    try:
        held = work()
        peak = tracemalloc.get_traced_memory()[1]
        del held
        return peak
    finally:
        tracemalloc.stop()


def owned_guards() -> set[str]:
    """The names of all guards of the reader."""
    names = [name for module in (guards, folder, mapping) for name in vars(module)]
    return {name for name in names if name.startswith(("check_", "refuse_"))}
