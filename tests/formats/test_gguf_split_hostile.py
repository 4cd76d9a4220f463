"""Split models whose files don't fit together: refused by file and field, with a sabotage of each guard."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest
from ggufbuilder import (
    BOOL,
    I32,
    STRING,
    U32,
    Entry,
    Layout,
    Pair,
    build,
    split_model,
    split_pairs,
    write_files,
)

from ostinato.errors.formats import ModelFileMissing, ModelFormatError, ModelPartMissing
from ostinato.formats.gguf import GgufFile, split
from ostinato.formats.gguf.mapped import MappedFile
from sabotage import goes_red, nothing

FIRST, SECOND, THIRD = (f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3))
COUNT, NO, TOTAL = "split.count", "split.no", "split.tensors.count"
A, B, C, D, E = (Entry(name, (8,), 0, 32) for name in (b"a", b"b", b"c", b"d", b"e"))
NAME, OTHER_NAME = (Pair(b"general.name", STRING, name) for name in (b"tiny", b"huge"))
ONE, TWO, THREE = (split_pairs(index, 3, 4) for index in range(3))


def three() -> dict[str, Layout]:
    return split_model((A, B), (C,), (D,), pairs=(NAME,))


@dataclass(frozen=True)
class Case:
    """Files that don't fit, and where that must be seen; `guard` is the function of `split` that sees it."""

    name: str
    guard: str
    files: dict[str, Layout]  # the first is opened
    at: str
    field: str
    got: str


def plain(name: str, file: str, layout: Layout, got: str) -> Case:
    """One file whose name numbers no parts."""
    return Case(name, "check_whole", {file: layout}, file, COUNT, got)


def unlike(name: str, guard: str, part: str, layout: Layout, field: str, got: str, *, at: str = "") -> Case:
    """One of the three parts is another file; the error is seen there, or `at` another part."""
    return Case(name, guard, three() | {part: layout}, at or part, field, got)


def named(name: str, guard: str, names: tuple[str, str, str], at: str, field: str, got: str) -> Case:
    """The three parts, in order, under other names."""
    return Case(name, guard, dict(zip(names, three().values(), strict=True)), at, field, got)


NULL = "m-00000-of-00003.gguf"
CASES = [
    plain("a plain name", "m.gguf", three()[FIRST], "3 parts"),
    plain("a name of one part", "m-00001-of-00001.gguf", three()[FIRST], "3 parts"),
    plain("Arabic digits", "m-\u0660\u0660\u0660\u0660\u0661-of-00003.gguf", three()[FIRST], "3 parts"),
    plain("a negative count", "m.gguf", build((Pair(b"split.count", I32, -1),)), "-1 parts"),
    Case("third named", "check_first", dict(reversed(three().items())), THIRD, "file name", "part 3 of 3"),
    named("part 0", "check_first", (NULL, SECOND, THIRD), NULL, "file name", "part 0 of 3"),
    unlike("no count", "check_count", FIRST, build((NAME,), (A, B)), COUNT, "no such key"),
    unlike("another count", "check_count", FIRST, build(split_pairs(0, 4, 4), (A, B)), COUNT, "4"),
    unlike("a merged model", "check_count", FIRST, build(split_pairs(0, 0, 4), (A, B)), COUNT, "0"),
    unlike("the first says second", "check_number", FIRST, build(TWO, (A, B)), NO, "1"),
    unlike("the second says first", "check_number", SECOND, build(ONE, (C,)), NO, "0"),
    unlike("no number", "check_number", SECOND, build((), (C,)), NO, "no such key"),
    named("parts swapped", "check_number", (FIRST, THIRD, SECOND), SECOND, NO, "2"),
    unlike("another version", "check_version", THIRD, build(THREE, (D,), version=2), "version", "2"),
    unlike(
        "another model", "check_agreement", SECOND, build((OTHER_NAME, *TWO), (C,)), "general.name", "huge"
    ),
    unlike(
        "another type",
        "check_agreement",
        SECOND,
        build((Pair(b"general.name", BOOL, True), *TWO), (C,)),
        "general.name",
        "True",
    ),
    unlike(
        "count unlike the first's", "check_agreement", SECOND, build(split_pairs(1, 2, 4), (C,)), COUNT, "2"
    ),
    unlike(
        "total unlike the first's", "check_agreement", SECOND, build(split_pairs(1, 3, 5), (C,)), TOTAL, "5"
    ),
    unlike("a tensor twice", "check_not_repeated", SECOND, build(TWO, (A,)), "a", FIRST),
    unlike("too few tensors", "check_total", SECOND, build(TWO), TOTAL, "3 in 3 parts", at=FIRST),
    unlike("too many tensors", "check_total", SECOND, build(TWO, (C, E)), TOTAL, "5 in 3 parts", at=FIRST),
    unlike("no total", "check_total", FIRST, build(ONE[:2], (A, B)), TOTAL, "no such key"),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def expect_refusal(case: Case, folder: Path) -> None:
    """The test of a case, also what a sabotaged guard must make fail."""
    path = write_files(folder, case.files)
    try:
        outcome: object = GgufFile.open(path)
    except Exception as error:
        outcome = error
    assert isinstance(outcome, ModelFormatError), repr(outcome)
    assert (outcome.file, outcome.field, outcome.offset) == (str(folder / case.at), case.field, None)
    assert case.got in outcome.got
    assert outcome.expected
    assert outcome.remedy
    assert pickle.loads(pickle.dumps(outcome)).fields() == outcome.fields()


@each_case
def test_parts_that_do_not_fit_are_refused(case: Case, tmp_path: Path) -> None:
    expect_refusal(case, tmp_path)


@each_case
def test_without_its_guard_the_refusal_is_missed(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_red(monkeypatch, split, case.guard, nothing, lambda: expect_refusal(case, tmp_path))


def test_every_guard_has_a_case() -> None:
    named = {name for name in vars(split) if name.startswith("check_")}
    assert named - {"check_name", "check_part"} == {case.guard for case in CASES} | {"check_present"}


def test_the_first_part_is_named_to_who_names_another(tmp_path: Path) -> None:
    write_files(tmp_path, three())
    with pytest.raises(ModelFormatError, match="part 3 of 3") as caught:
        GgufFile.open(tmp_path / THIRD)
    assert FIRST in caught.value.remedy


def expect_missing(folder: Path) -> None:
    path = write_files(folder, three())
    (folder / SECOND).unlink()
    with pytest.raises(ModelFileMissing) as caught:
        GgufFile.open(path)
    error = caught.value
    assert isinstance(error, ModelPartMissing)
    assert isinstance(error, FileNotFoundError)
    assert error.fields() == {"file": str(folder / SECOND), "first": str(path), "number": 2, "count": 3}
    assert SECOND in str(error)
    assert "3 parts" in error.remedy
    assert pickle.loads(pickle.dumps(error)).fields() == error.fields()


def test_a_missing_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(monkeypatch, split, "check_present", nothing, lambda: expect_missing(tmp_path))


def test_a_part_that_is_no_gguf_file(tmp_path: Path) -> None:
    path = write_files(tmp_path, three())
    (tmp_path / THIRD).write_bytes(b"<html>")
    with pytest.raises(ModelFormatError, match="magic") as caught:
        GgufFile.open(path)
    assert caught.value.file == str(tmp_path / THIRD)


@pytest.mark.parametrize("present", [1, 4])
def test_a_huge_count_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: int) -> None:
    """Files are looked for before any is opened, and the search ends at the first that is missing."""
    numbers = (
        Pair(b"split.no", U32, 0),
        Pair(b"split.count", U32, 99_999),
        Pair(b"split.tensors.count", U32, 1),
    )
    names = [f"m-{i:05}-of-99999.gguf" for i in range(1, present + 1)]
    path = write_files(tmp_path, {name: build(numbers, (A,)) for name in names})
    opened: list[Path] = []
    asked: list[object] = []
    init, present_guard = MappedFile.__init__, split.check_present

    def count_open(self: MappedFile, file: Path) -> None:
        opened.append(file)
        init(self, file)

    def count_ask(*arguments: object) -> None:
        asked.append(arguments)
        present_guard(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(MappedFile, "__init__", count_open)
    monkeypatch.setattr(split, "check_present", count_ask)
    with pytest.raises(ModelPartMissing) as caught:
        GgufFile.open(path)
    assert (caught.value.number, caught.value.count) == (present + 1, 99_999)
    assert opened == [path]
    assert len(asked) == present


def test_a_refusal_closes_the_parts(tmp_path: Path) -> None:
    fds = Path("/proc/self/fd")
    if not fds.exists():
        pytest.skip("the open files of this process are not listed here")
    path = write_files(tmp_path, three() | {THIRD: build(ONE, (D,))})
    before = len(list(fds.iterdir()))
    for _ in range(20):
        with pytest.raises(ModelFormatError):
            GgufFile.open(path)
    assert len(list(fds.iterdir())) == before
