"""One constructed file for each way a GGUF file can be wrong, and a sabotage of each guard."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest
from ggufbuilder import ARRAY, BOOL, I32, STRING, U8, U32, Entry, Layout, Pair, build, small
from rewriting import cut_everywhere
from test_gguf_memory import FACTOR, SLACK, peak_of

from ostinato.errors.formats import ModelFileMissing, ModelFileUnreadable, ModelFormatError
from ostinato.formats.gguf import GgufFile, guards

HUGE = (1 << 64) - 1
KEY = b"general.alignment"


@dataclass(frozen=True)
class Case:
    """A broken file and where the reader must see it; `guard` is the function that does."""

    name: str
    guard: str
    data: bytes
    field: str
    offset: int
    got: str = ""


def broken(
    name: str, guard: str, layout: Layout, field: str, at: str, *, shift: int = 0, got: str = ""
) -> Case:
    return Case(name, guard, bytes(layout.data), field, layout.offset(at) + shift, got)


def cut(name: str, layout: Layout, at: str, field: str, *, keep: int = 0) -> Case:
    """The file ends `keep` bytes into the part `at`."""
    end = layout.offset(at) + keep
    return Case(
        name, "check_room", bytes(layout.data[:end]), field, layout.offset(at), f"{keep} bytes to the end"
    )


def cases() -> list[Case]:
    ok = small()
    bare = Layout(ok.data[: ok.offset("data")])
    # Long enough in front of the cut for the counts to be plausible.
    long = build((Pair(b"k" * 40, STRING, b"v" * 40), Pair(b"u", 10, 1)))
    long_texts = build((Pair(b"t", ARRAY, [b"one" * 20, b"two", b"three"], STRING),))
    flat = (Entry(b"a", (8,), 0, 32), Entry(b"b", (8,), 0, 32))

    def aligned(pair: Pair) -> Layout:
        return build((pair,), flat)

    def dims(*sizes: int) -> Layout:
        return build((), (Entry(b"a", sizes, 0, 32),))

    def starts(first: int, second: int) -> Layout:
        return build((), (Entry(b"a", (8,), 0, 32, first), Entry(b"b", (8,), 0, 32, second)))

    def patched(
        guard: str, at: str, value: int | bytes, field: str, *, shift: int = 0, got: str = ""
    ) -> Case:
        return broken(f"{at} = {value!r}", guard, ok.patched(at, value), field, at, shift=shift, got=got)

    return [
        Case("empty file", "check_magic", b"", "magic", 0),
        Case("two bytes", "check_magic", b"GG", "magic", 0),
        Case("another format", "check_magic", b"PK\x03\x04" + bytes(60), "magic", 0),
        patched("check_byte_order", "version", 0x03000000, "version", got="a big-endian file"),
        *(patched("check_version", "version", v, "version") for v in (0, 1, 4, 0xFFFFFFFF)),
        cut("ends in the version", ok, "version", "version", keep=3),
        cut("ends before the counts", ok, "tensor_count", "tensor_count"),
        cut("ends in the metadata count", ok, "metadata_count", "metadata_count", keep=7),
        *(patched("check_count", "tensor_count", n, "tensor_count") for n in (HUGE, 1 << 40, len(ok.data))),
        *(
            patched("check_count", "metadata_count", n, "metadata_count")
            for n in (HUGE, 1 << 40, len(ok.data))
        ),
        # metadata: keys
        patched("check_name_length", "metadata[0].key.length", HUGE, "metadata[0].key"),
        patched("check_name_length", "metadata[0].key.length", 1 << 16, "metadata[0].key"),
        patched("check_room", "metadata[0].key.length", 65_535, "metadata[0].key", shift=8, got="to the end"),
        patched("refuse_name", "metadata[2].key", b"fl\xffg", "metadata[2].key"),
        broken(
            "key twice",
            "check_unique",
            build((Pair(b"k", U8, 1), Pair(b"k", U8, 1))),
            "metadata[1].key",
            "metadata[1].key.length",
        ),
        # metadata: values
        *(patched("refuse_value_type", "metadata[3].type", n, "i8: type") for n in (13, 255, 0xFFFFFFFF)),
        patched("refuse_value_type", "metadata[6].element", 13, "tokens: element type"),
        patched("refuse_value_type", "metadata[7].element", 0xFFFFFFFF, "scores: element type"),
        patched("check_not_nested", "metadata[6].element", ARRAY, "tokens: element type", got="arrays"),
        patched("check_count", "metadata[6].count", HUGE, "tokens: count"),
        patched("check_count", "metadata[6].count", 1 << 32, "tokens: count"),
        patched("check_count", "metadata[7].count", HUGE, "scores: count"),
        patched("check_count", "metadata[7].count", 1 << 62, "scores: count"),  # times 4 wraps to 0
        patched("check_room", "metadata[0].value.length", HUGE, "general.architecture", shift=8),
        patched("check_room", "metadata[0].value.length", len(ok.data), "general.architecture", shift=8),
        patched("check_room", "metadata[6].value[2].length", HUGE, "tokens", shift=8),
        patched("check_room", "metadata[6].value[2].length", 1 << 63, "tokens", shift=8),
        patched("check_flag", "metadata[2].value", 2, "flag"),
        patched("check_flag", "metadata[8].value[1]", 255, "mask"),
        cut("ends in a key", long, "metadata[0].key", "metadata[0].key", keep=30),
        cut("ends in a value type", long, "metadata[0].type", "k" * 40 + ": type", keep=2),
        cut("ends in a scalar", long, "metadata[1].value", "u", keep=7),
        cut("ends in a string", long, "metadata[0].value", "k" * 40, keep=39),
        cut("ends in a string array", long_texts, "metadata[0].value[1]", "t", keep=1),
        cut("ends in a string's length", long_texts, "metadata[0].value[2].length", "t", keep=7),
        # alignment
        *(
            broken(
                f"alignment {n}",
                "check_alignment",
                aligned(Pair(KEY, U32, n)),
                KEY.decode(),
                "metadata[0].type",
            )
            for n in (0, 3, 24, 33, 1 << 31, (1 << 32) - 1)
        ),
        *(
            broken(f"alignment {say}", "check_alignment", aligned(pair), KEY.decode(), "metadata[0].type")
            for say, pair in {
                "negative": Pair(KEY, I32, -32),
                "a text": Pair(KEY, STRING, b"32"),
                "a bool": Pair(KEY, BOOL, True),
                "an array": Pair(KEY, ARRAY, [32], U32),
            }.items()
        ),
        # tensors
        patched("check_name_length", "tensor[0].name.length", HUGE, "tensor[0].name"),
        patched("refuse_name", "tensor[3].name", b"\xc3\x28ep", "tensor[3].name"),
        broken(
            "tensor twice",
            "check_unique",
            build((), (flat[0], flat[0])),
            "tensor[1].name",
            "tensor[1].name.length",
        ),
        *(patched("check_rank", "tensor[0].n_dims", n, "embed.weight: n_dims") for n in (0, 5, 0xFFFFFFFF)),
        broken("zero dimension", "check_dims", dims(8, 0, 2), "a: dims", "tensor[0].dims[0]"),
        broken("product wraps to 0", "check_dims", dims(1 << 32, 1 << 32), "a: dims", "tensor[0].dims[0]"),
        broken("product wraps to 8", "check_dims", dims((1 << 61) + 1, 8), "a: dims", "tensor[0].dims[0]"),
        broken("four huge dimensions", "check_dims", dims(*[HUGE] * 4), "a: dims", "tensor[0].dims[0]"),
        patched("check_row", "tensor[0].dims[0]", 33, "embed.weight: dims"),
        patched("check_row", "tensor[2].dims[0]", 128, "out.weight: dims"),
        *(
            patched("refuse_tensor_type", "tensor[1].type", n, "norm.weight: type")
            for n in (4, 5, 31, 38, 43, 0x7FFFFFFF, 0xFFFFFFFF)
        ),
        patched("check_aligned", "tensor[1].offset", 129, "norm.weight: offset"),
        *(
            patched("check_inside", "tensor[1].offset", n, "norm.weight: offset")
            for n in (1 << 20, 1 << 63, HUGE - 31)
        ),
        patched("check_inside", "tensor[1].dims[0]", 1 << 60, "norm.weight: offset", shift=8 + 4),
        Case(
            "data cut short",
            "check_inside",
            bytes(ok.data[:-1]),
            "deep: offset",
            ok.offset("tensor[3].offset"),
        ),
        Case(
            "no data", "check_inside", bytes(bare.data), "embed.weight: offset", ok.offset("tensor[0].offset")
        ),
        *(
            Case(say, "check_disjoint", bytes(layout.data), field, layout.offset("data") + at)
            for say, layout, field, at in (
                ("same place", starts(0, 0), "b: offset", 0),
                ("last one first", starts(32, 32), "b: offset", 32),
                (
                    "one within another",
                    build((), (Entry(b"a", (32,), 0, 128, 0), Entry(b"b", (8,), 0, 32, 64))),
                    "b: offset",
                    64,
                ),
            )
        ),
        cut("ends in a tensor name", ok, "tensor[3].name", "tensor[3].name", keep=3),
        cut("ends in n_dims", ok, "tensor[3].n_dims", "deep: n_dims", keep=1),
        cut("ends in the dimensions", ok, "tensor[3].dims[2]", "deep: dims", keep=4),
        cut("ends in a tensor type", ok, "tensor[3].type", "deep: type", keep=3),
        cut("ends in an offset", ok, "tensor[3].offset", "deep: offset", keep=7),
    ]


CASES = cases()
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def outcome(path: Path) -> GgufFile | Exception:
    try:
        return GgufFile.open(path)
    except Exception as error:
        return error


def expect_refusal(case: Case, path: Path) -> None:
    """The test of a case, also what a sabotaged guard must make fail."""
    path.write_bytes(case.data)
    error = outcome(path)
    assert isinstance(error, ModelFormatError), repr(error)
    assert (error.file, error.field, error.offset) == (str(path), case.field, case.offset)
    assert error.expected
    assert error.got
    assert case.got in error.got
    assert error.remedy
    assert case.field in str(error)
    assert pickle.loads(pickle.dumps(error)).fields() == error.fields()


@each_case
def test_a_broken_file_is_refused_where_it_is_broken(case: Case, tmp_path: Path) -> None:
    expect_refusal(case, tmp_path / "m.gguf")


@each_case
def test_without_its_guard_the_refusal_is_missed(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, case.guard, lambda *_: None)
    with pytest.raises(AssertionError):
        expect_refusal(case, tmp_path / "m.gguf")


def test_every_guard_has_a_case() -> None:
    named = {name for name in vars(guards) if name.startswith(("check_", "refuse_"))}
    assert named == {case.guard for case in CASES}


@each_case
def test_a_broken_file_costs_memory_in_proportion(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(case.data)
    assert peak_of(lambda: outcome(path)) <= FACTOR * len(case.data) + SLACK


@pytest.mark.parametrize("version", [2, 3])
def test_truncated_anywhere(tmp_path: Path, version: int) -> None:
    path = tmp_path / "m.gguf"
    for end in cut_everywhere(path, small(version).data):
        error = outcome(path)
        assert isinstance(error, ModelFormatError), end
        assert error.offset is not None
        assert error.offset <= end or error.field == "deep: offset"


def test_a_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path / "m.gguf" / "below"):
        (tmp_path / "m.gguf").write_bytes(b"")
        with pytest.raises(FileNotFoundError, match="no such model file") as caught:
            GgufFile.open(path)
        assert isinstance(caught.value, ModelFileMissing)
        assert caught.value.file == str(path)
        assert caught.value.remedy
        assert pickle.loads(pickle.dumps(caught.value)).fields() == {"file": str(path)}


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="a directory") as caught:
        GgufFile.open(tmp_path)
    assert caught.value.field == "file"


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFormatError, match="a special file"):
        GgufFile.open(tmp_path / "pipe")


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="cannot be read") as caught:
        GgufFile.open(tmp_path / "loop")
    assert isinstance(caught.value, ModelFileUnreadable)
    assert caught.value.reason
    assert caught.value.remedy
