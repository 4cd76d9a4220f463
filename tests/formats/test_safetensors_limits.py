"""What a checkpoint may cost, and what stands where a file should: sizes, links, pipes, deep call stacks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensorsbuilder import (
    INDEX,
    SINGLE,
    Entry,
    dumps,
    indexed,
    packed,
    sharded,
    small,
    tensors,
    write,
)
from safetensorscases import FACTOR, FIRST, SECOND, SLACK, outcome, peak_of
from safetensorsfoldercases import without

from ostinato.errors import OstinatoError
from ostinato.errors.checkpoint import MissingShards
from ostinato.errors.formats import ModelFileChanged, ModelFileMissing, ModelFileUnreadable, ModelFormatError
from ostinato.formats import mapping
from ostinato.formats.safetensors import Checkpoint, folder, guards


def flat(item: Callable[[int], str], count: int) -> str:
    return ",".join(map(item, range(count)))


def many_tensors(count: int) -> bytes:
    entries = {f"{i:x}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(count)}
    return packed(dumps(entries), bytes(count))


AMPLIFIERS: dict[str, Callable[[], str]] = {
    # Whatever makes the largest objects out of the fewest bytes.
    "empty lists": lambda: "[" + flat(lambda _: "[]", 140_000) + "]",
    "empty objects": lambda: "[" + flat(lambda _: "{}", 140_000) + "]",
    "objects of one": lambda: "[" + flat(lambda _: '{"":0}', 60_000) + "]",
    "objects in objects": lambda: "[" + flat(lambda _: '{"":' * 100 + "{}" + "}" * 100, 1_000) + "]",
    "lists in lists": lambda: "[" + flat(lambda _: "[" * 100 + "]" * 100, 2_000) + "]",
    "short keys": lambda: "{" + flat(lambda i: f'"{i:x}":{{}}', 45_000) + "}",
    "short strings": lambda: "[" + flat(lambda _: '"ab"', 90_000) + "]",
    "wide characters": lambda: "[" + flat(lambda _: '"😀"', 100_000) + "]",
    "one wide character": lambda: '"😀' + "a" * 1_000_000 + '"',
    "floats": lambda: "[" + flat(lambda _: "1e9", 110_000) + "]",
    "long integers": lambda: "[" + flat(lambda _: "9" * 100, 20_000) + "]",
    "long numbers": lambda: "[" + flat(lambda _: "0." + "9" * 100_000, 10) + "]",
    "a key twice among many": lambda: "{" + flat(lambda i: f'"{i % 49_999:x}":0', 50_000) + "}",
}


HOLDERS: dict[str, Callable[[bytes], dict[str, bytes]]] = {
    "config": lambda value: {**small(), "config.json": value},
    "index": lambda value: {**sharded(), INDEX: value},
    "header": lambda value: {**small(), SINGLE: packed(value)},
}


@pytest.mark.parametrize(
    ("name", "holder"),
    [
        pytest.param(name, holder, marks=[] if at % len(HOLDERS) == i or not at else [pytest.mark.slow])
        for i, holder in enumerate(HOLDERS) for at, name in enumerate(AMPLIFIERS)
    ],
)  # fmt: skip
def test_json_costs_memory_in_proportion(name: str, holder: str, tmp_path: Path) -> None:
    """By default each in one of the three files, whose parser is the same."""
    value = f'{{"a":{AMPLIFIERS[name]()}}}'.encode()
    assert len(value) > 400_000
    write(tmp_path, HOLDERS[holder](value))
    assert peak_of(lambda: outcome(tmp_path)) <= FACTOR * len(value) + SLACK


def test_many_tensors_cost_memory_in_proportion(tmp_path: Path) -> None:
    data = many_tensors(20_000)
    write(tmp_path, {"config.json": b"{}", SINGLE: data})
    assert peak_of(lambda: Checkpoint.open(tmp_path)) <= FACTOR * len(data) + SLACK


def test_many_indexed_tensors_cost_memory_in_proportion(tmp_path: Path) -> None:
    data = indexed({f"{i:x}": "a.safetensors" for i in range(100_000)})
    write(tmp_path, {"config.json": b"{}", INDEX: data, "a.safetensors": packed({})})
    assert peak_of(lambda: outcome(tmp_path)) <= FACTOR * len(data) + SLACK


# What no contents of a folder show


def refused_for_size(path: Path) -> None:
    with pytest.raises(ModelFormatError) as caught:
        Checkpoint.open(path)
    assert caught.value.field == "file size"
    assert str(guards.MAX_CONFIG_BYTES) in caught.value.expected


def test_a_huge_config_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, small())
    os.truncate(tmp_path / "config.json", guards.MAX_CONFIG_BYTES + 1)
    assert peak_of(lambda: refused_for_size(tmp_path)) < 1 << 20
    monkeypatch.setattr(guards, "check_text_size", lambda *_: None)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        refused_for_size(tmp_path)


def test_a_huge_index_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MAX_INDEX_BYTES", 100)
    write(tmp_path, sharded())
    with pytest.raises(ModelFormatError, match="at most 100 bytes") as caught:
        Checkpoint.open(tmp_path)
    assert caught.value.file == str(tmp_path / INDEX)


def test_a_huge_header_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, small())
    (tmp_path / SINGLE).write_bytes(packed(b"{", length=guards.MAX_HEADER_BYTES + 1))
    os.truncate(tmp_path / SINGLE, guards.MAX_HEADER_BYTES + 100)  # a hole, no disk space
    error = outcome(tmp_path)
    assert isinstance(error, ModelFormatError)
    assert error.expected == f"at most {guards.MAX_HEADER_BYTES}"


@pytest.mark.parametrize("name", ["../tokenizer.json", "/etc/passwd", "a/b", "a\\b", "", "a\0", "\ud800"])
def test_a_text_file_is_asked_for_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoint.open(write(tmp_path, small())) as checkpoint:

        def expect() -> None:
            with pytest.raises(ModelFormatError) as caught:
                checkpoint.text_file(name)
            assert (caught.value.file, caught.value.field) == (str(tmp_path), "file name")

        expect()
        monkeypatch.setattr(guards, "check_file_name", lambda *_: None)
        with pytest.raises(pytest.fail.Exception):
            expect()


@pytest.mark.parametrize("absolute", [False, True])
def test_an_index_cannot_leave_its_folder(
    absolute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file outside is a valid shard: nothing but its name is wrong."""
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes(tensors(Entry("a", "F32", (1,), 4)))
    shard = str(outside) if absolute else "../outside.safetensors"
    path = write(tmp_path / "m", {"config.json": b"{}", INDEX: indexed({"a": shard})})
    error = outcome(path)
    assert isinstance(error, ModelFormatError)
    assert error.field == "weight_map.a"
    monkeypatch.setattr(guards, "check_shard_name", lambda *_: None)
    assert not isinstance(outcome(path), ModelFormatError)


def test_a_file_that_is_shortened_while_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoint.open(write(tmp_path, sharded())) as checkpoint:
        tensor = checkpoint.tensors["c"]
        size = tensor.file.stat().st_size

        def expect() -> None:
            with pytest.raises(ModelFileChanged) as caught:
                checkpoint.data(tensor)
            fields = {"file": str(tmp_path / SECOND), "tensor": "c", "needed": size, "size": size - 1}
            assert caught.value.fields() == fields

        os.truncate(tensor.file, size - 1)
        expect()
        assert (checkpoint.data(checkpoint.tensors["b"]) == 1).all()  # the rest is still there
        monkeypatch.setattr(mapping, "check_not_shortened", lambda *_: None)
        with pytest.raises(pytest.fail.Exception):
            expect()


def test_a_file_that_is_replaced_while_open(tmp_path: Path) -> None:
    with Checkpoint.open(write(tmp_path, sharded())) as checkpoint:
        tensor = checkpoint.tensors["c"]
        (tmp_path / "new").write_bytes(b"")
        (tmp_path / "new").replace(tensor.file)
        assert (checkpoint.data(tensor) == 2).all()


def test_a_path_that_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def expect(path: Path, kind: type[OstinatoError]) -> OstinatoError:
        error = outcome(path)
        assert type(error) is kind, repr(error)
        assert error.fields()["file"] == str(path)
        assert error.remedy
        return error

    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    paths = {"absent": ModelFileMissing, "file": ModelFormatError, "loop": ModelFileUnreadable}
    for name, kind in paths.items():
        expect(tmp_path / name, kind)
    assert "a file" in str(expect(tmp_path / "file", ModelFormatError))
    monkeypatch.setattr(folder, "check_folder", lambda *_: None)
    for name, kind in paths.items():
        with pytest.raises(AssertionError):
            expect(tmp_path / name, kind)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", INDEX, FIRST])
def test_what_stands_in_a_file_s_place(name: str, tmp_path: Path) -> None:
    files = sharded()
    path = tmp_path / name
    write(tmp_path, without(files, name))

    path.symlink_to("gone")
    error = outcome(tmp_path)
    assert type(error) is (MissingShards if name == FIRST else ModelFileMissing)
    path.unlink()

    path.symlink_to(name)  # itself
    error = outcome(tmp_path)
    assert type(error) is (MissingShards if name == FIRST else ModelFileUnreadable)
    path.unlink()

    path.mkdir()
    error = outcome(tmp_path)
    assert isinstance(error, ModelFormatError)
    assert (error.field, error.got) == ("file", "a directory")
    path.rmdir()

    os.mkfifo(path)  # reading it would wait for a writer
    error = outcome(tmp_path)
    assert isinstance(error, ModelFormatError)
    assert (error.field, error.got) == ("file", "a special file")


def test_a_dangling_link_to_the_weights(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": b"{}"})
    (tmp_path / SINGLE).symlink_to("gone")
    error = outcome(tmp_path)
    assert isinstance(error, ModelFileMissing)
    assert error.file == str(tmp_path / SINGLE)


def test_the_reader_works_deep_in_a_call_stack(tmp_path: Path) -> None:
    """Close to the recursion limit: a checkpoint, a typed error, or the caller's own overflow."""
    write(tmp_path, small())

    def down(levels: int) -> object:
        return outcome(tmp_path) if levels == 0 else down(levels - 1)

    for levels in range(0, 980, 70):
        try:
            got = down(levels)
        except RecursionError:
            continue
        assert isinstance(got, Checkpoint | ModelFormatError | RecursionError)
