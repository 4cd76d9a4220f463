"""Models that cannot be written: refused by file and field, the disk as it was; a sabotage of each guard."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.errors.formats import InvalidModelContent, ModelFormatError
from ostinato.formats.gguf import GgufFile, guards, split, write_gguf, write_guards, writer
from ostinato.ir import encoding as e
from sabotage import goes_red, nothing

PART = "m-00002-of-00003.gguf"
GOOD = ("t", (8,), e.I8, bytes(8))


@dataclass(frozen=True)
class Case:
    """What is refused, and by which guard of `owner`."""

    guard: str
    field: str
    metadata: dict[str, Any]
    tensors: list[Any]
    owner: Any = write_guards
    alignment: int | None = None
    path: str = "m.gguf"
    got: str = ""


def meta(guard: str, value: object, *, key: str = "k", owner: Any = write_guards, **more: Any) -> Case:
    return Case(guard, key, {key: value}, [], owner, **more)


def part(guard: str, field: str, owner: Any = write_guards, **numbers: int) -> Case:
    return Case(guard, field, {f"split.{key}": n for key, n in numbers.items()}, [], owner, path=PART)


def tensor(guard: str, field: str, *source: object, owner: Any = write_guards, got: str = "") -> Case:
    return Case(guard, field, {}, [source], owner, got=got)


def dims(guard: str, *shape: Any, encoding: e.Encoding = e.I8) -> Case:
    """A shape that a guard of the reader refuses; the data would be right, or is never asked for."""
    return tensor(guard, "t: dims", "t", shape, encoding, list, owner=guards)


CASES = {
    "None": meta("refuse_value", None),
    "bytes": meta("refuse_value", b"x"),
    "a dict": meta("refuse_value", {}),
    "a list of ints": meta("refuse_value", [1, 2]),
    "a mixed list": meta("refuse_value", ["a", 1]),
    "a complex": meta("refuse_value", 1j),
    "a matrix": meta("refuse_value", np.zeros((2, 2))),
    "a rank-0 array": meta("refuse_value", np.array(1.0)),
    "half floats": meta("refuse_dtype", np.zeros(2, np.float16)),
    "a half float": meta("refuse_dtype", np.float16(1)),
    "objects": meta("refuse_dtype", np.array([None])),
    "numpy text": meta("refuse_dtype", np.array(["a"])),
    "an int of 65 bits": meta("refuse_number", 1 << 64),
    "a negative of 65 bits": meta("refuse_number", -(1 << 63) - 1),
    "a float beyond float32": meta("refuse_number", 1e300),
    "a lone surrogate": meta("refuse_text", "\ud800"),
    "a lone surrogate in a list": meta("refuse_text", ["a", "\udfff"]),
    "a key that is no text": meta("check_name", 1, key="\udcff"),
    "a long key": meta("check_name", 1, key="k" * 65_536),
    "alignment 24": meta("check_alignment", 24, key="general.alignment", owner=guards),
    "alignment as text": meta("check_alignment", "32", key="general.alignment", owner=guards),
    "alignment 4": meta("check_alignment_agrees", np.uint32(4), key="general.alignment"),
    "two alignments": meta("check_alignment_agrees", 64, key="general.alignment", alignment=32),
    "a part in a whole file": meta("check_whole", np.uint16(3), key="split.count", owner=split),
    "a part without a count": part("check_count", "split.count", split, no=1),
    "another part": part("check_number", "split.no", split, no=0, count=3),
    "a part without a total": part("check_split", "split.tensors.count", no=1, count=3),
    "a name that is no text": tensor("check_name", "tensor[0].name", "\udcff", (8,), e.I8, bytes(8)),
    "a long name": tensor("check_name", "tensor[0].name", "n" * 64, (8,), e.I8, bytes(8)),
    "a name twice": Case("check_unique", "tensor[1].name", {}, [GOOD, GOOD], guards),
    "a scalar": tensor("check_rank", "t: n_dims", "t", (), e.I8, b"\0", owner=guards),
    "five dimensions": tensor("check_rank", "t: n_dims", "t", (1,) * 5, e.I8, b"\0", owner=guards),
    "an empty dimension": dims("check_dims", 0, 8),
    "negative dimensions": dims("check_dims", -2, -4),
    "too many elements": dims("check_dims", np.int64(1 << 40), np.int64(1 << 40)),
    "a split block": dims("check_row", 2, 33, encoding=e.Q8_0),
    "an encoding of ours": tensor("check_encoding", "t: type", "t", (8,), e.BOOL, bytes(8)),
    "too few bytes": tensor("check_length", "t: data", "t", (8,), e.F32, bytes(31)),
    "too many bytes": tensor("check_length", "t: data", "t", (8,), e.F32, np.zeros(9, np.float32)),
    "no bytes": tensor("refuse_data", "t: data", "t", (8,), e.I8, [0] * 8, got="list"),
    "a function with too few": tensor("check_length", "t: data", "t", (8,), e.I8, lambda: [b"1234", b"567"]),
    "a function without end": tensor(
        "check_length", "t: data", "t", (8,), e.I8, lambda: itertools.repeat(b"123")
    ),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def expect_refusal(case: Case, folder: Path) -> None:
    """The test of a case, also what a sabotaged guard must make fail."""
    path = folder / case.path
    path.write_bytes(b"before")
    try:
        write_gguf(path, case.metadata, case.tensors, alignment=case.alignment)
        outcome: object = "written"
    except Exception as error:
        outcome = error
    assert isinstance(outcome, InvalidModelContent), repr(outcome)
    assert (outcome.file, outcome.field) == (str(path), case.field)
    assert outcome.expected
    assert outcome.got
    assert case.got in outcome.got
    assert "write_gguf" in outcome.remedy
    str(outcome).encode()
    assert pickle.loads(pickle.dumps(outcome)).fields() == outcome.fields()
    assert os.listdir(folder) == [case.path]
    assert path.read_bytes() == b"before"


@each_case
def test_what_cannot_be_written_is_refused(case: Case, tmp_path: Path) -> None:
    expect_refusal(case, tmp_path)


@each_case
def test_without_its_guard_the_refusal_is_missed(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_red(monkeypatch, case.owner, case.guard, nothing, lambda: expect_refusal(case, tmp_path))


def test_every_guard_has_a_case() -> None:
    named = {name for name in vars(write_guards) if name.startswith(("check_", "refuse_"))}
    assert named == {case.guard for case in CASES.values() if case.owner is write_guards}


def test_nothing_is_begun_before_all_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def pieces() -> Iterator[bytes]:
        called.append("data")
        yield bytes(8)

    def begin(path: Path) -> Any:
        called.append("file")
        raise AssertionError

    monkeypatch.setattr(writer, "replacing", begin)
    with pytest.raises(InvalidModelContent):
        write_gguf(tmp_path / "m.gguf", {}, [("a", (8,), e.I8, pieces), ("b", (8,), e.I8, b"")])
    assert called == []


def fail() -> Iterator[bytes]:
    yield bytes(4)
    raise OSError("the source is gone")


@pytest.mark.parametrize("before", [None, b"before"])
def test_a_function_that_fails_leaves_the_disk_as_it_was(tmp_path: Path, before: bytes | None) -> None:
    path = tmp_path / "m.gguf"
    if before is not None:
        path.write_bytes(before)
    with pytest.raises(OSError, match="the source is gone"):
        write_gguf(path, {}, [("t", (8,), e.I8, fail)])
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([] if before is None else [before])


def test_what_the_tensors_iterator_raises_is_its_own(tmp_path: Path) -> None:
    def tensors() -> Iterator[Any]:
        yield GOOD
        raise ModelFormatError("source.gguf", "magic", "GGUF", "something else")

    with pytest.raises(ModelFormatError) as caught:
        write_gguf(tmp_path / "m.gguf", {}, tensors())
    assert caught.value.file == "source.gguf"
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_gguf(tmp_path / "absent" / "m.gguf", {}, [])


def test_places_beyond_4_gib() -> None:
    """Laid out without a byte of data."""
    refuse: Callable[[], list[bytes]] = list
    placed = writer._place(
        "m", [(n, (3 << 30,), e.I8, refuse) for n in "abc"] + [("d", (33,), e.I8, refuse)], 32
    )
    assert [tensor.start for tensor in placed] == [0, 3 << 30, 6 << 30, 9 << 30]


def test_a_model_without_anything(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", {}, [])
    assert (tmp_path / "m.gguf").stat().st_size == 24
    with GgufFile.open(tmp_path / "m.gguf") as file:
        assert (len(file.metadata), len(file.tensors), file.nbytes) == (0, 0, 24)
