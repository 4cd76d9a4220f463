"""Models in several files, read as one."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from ggufbuilder import (
    ARRAY,
    BOOL,
    F32,
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

from ostinato.errors.formats import ModelFileClosed
from ostinato.formats.gguf import GgufFile

FIRST, SECOND, THIRD = (f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3))
A, B, C, D = (Entry(name, (8,), 0, 32) for name in (b"a", b"b", b"c", b"d"))
NAME = Pair(b"general.name", STRING, b"tiny")


def three(*, pairs: tuple[Pair, ...] = (NAME,)) -> dict[str, Layout]:
    return split_model((A, B), (C,), (D,), pairs=pairs)


def test_the_parts_are_one_model(tmp_path: Path) -> None:
    path = write_files(tmp_path, three())
    with GgufFile.open(path) as file:
        assert file.path == path
        assert file.parts == tuple(tmp_path / name for name in (FIRST, SECOND, THIRD))
        assert file.nbytes == sum(part.stat().st_size for part in file.parts)
        assert file.metadata.text("general.name") == "tiny"
        assert file.metadata.integer("split.count") == 3
        assert list(file.tensors) == ["a", "b", "c", "d"]
        assert [tensor.part for tensor in file.tensors.values()] == [0, 0, 1, 2]
        # The builder fills the n-th tensor of a file with n.
        assert [int(file.data(tensor)[0]) for tensor in file.tensors.values()] == [1, 2, 1, 1]
        assert "3 parts" in repr(file)
        tensor = file.tensors["d"]
    with pytest.raises(ModelFileClosed) as caught:
        file.data(tensor)
    assert caught.value.file == str(tmp_path / THIRD)


def test_a_whole_file_has_one_part(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"m.gguf": build((NAME,), (A, B))})
    with GgufFile.open(path) as file:
        assert file.parts == (path,)
        assert file.nbytes == path.stat().st_size
        assert {tensor.part for tensor in file.tensors.values()} == {0}
        assert "parts" not in repr(file)


@pytest.mark.parametrize("tensors", [2, 3, 5])
def test_files_of_the_gguf_writer(tmp_path: Path, tensors: int) -> None:
    arrays = {f"t{i}": np.arange(i, i + 40, dtype=np.float32) for i in range(5)}
    writer = gguf.GGUFWriter(tmp_path / "w.gguf", "llama", split_max_tensors=2)
    writer.add_string("general.name", "split")
    for name, array in list(arrays.items())[:tensors]:
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    written = sorted(tmp_path.iterdir())
    assert len(written) == -(-tensors // 2)
    with GgufFile.open(written[0]) as file:
        assert file.parts == tuple(written)
        assert file.metadata.text("general.architecture") == "llama"
        assert list(file.tensors) == list(arrays)[:tensors]
        for name, tensor in file.tensors.items():
            np.testing.assert_array_equal(file.data(tensor).view(np.float32), arrays[name])


def test_a_first_part_without_tensors(tmp_path: Path) -> None:
    path = write_files(tmp_path, split_model((), (A,), (B, C), pairs=(NAME,)))
    with GgufFile.open(path) as file:
        assert [(name, tensor.part) for name, tensor in file.tensors.items()] == [
            ("a", 1),
            ("b", 2),
            ("c", 2),
        ]


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("name", ["m.gguf", "m-00001-of-00001.gguf"])
def test_a_merged_file_keeps_the_keys_and_is_whole(tmp_path: Path, name: str, count: int) -> None:
    path = write_files(tmp_path, {name: build(split_pairs(0, count, 4), (A,))})
    with GgufFile.open(path) as file:
        assert file.parts == (path,)


@pytest.mark.parametrize("stem", ["", "-00001-of-00002", "a\nb", "m-00001-of-00003.gguf"])
def test_any_stem(tmp_path: Path, stem: str) -> None:
    with GgufFile.open(write_files(tmp_path, split_model((A,), (B,), stem=stem))) as file:
        assert list(file.tensors) == ["a", "b"]


def test_parts_may_be_links(tmp_path: Path) -> None:
    """Download caches keep files under their checksums and link the names to them."""
    (tmp_path / "named").mkdir()
    write_files(tmp_path, three())
    for index, name in enumerate((FIRST, SECOND, THIRD)):
        (tmp_path / name).rename(tmp_path / f"blob{index}")
        (tmp_path / "named" / name).symlink_to(tmp_path / f"blob{index}")
    with GgufFile.open(tmp_path / "named" / FIRST) as file:
        assert len(file.tensors) == 4


def test_each_part_has_an_alignment_of_its_own(tmp_path: Path) -> None:
    files = three(pairs=(Pair(b"general.alignment", U32, 64),))
    files[FIRST] = build((Pair(b"general.alignment", U32, 64), *split_pairs(0, 3, 4)), (A, B), alignment=64)
    with GgufFile.open(write_files(tmp_path, files)) as file:
        assert file.alignment == 64
        assert [int(file.data(tensor)[0]) for tensor in file.tensors.values()] == [1, 2, 1, 1]


def test_what_a_part_repeats_truly_is_fine(tmp_path: Path) -> None:
    scores = Pair(b"scores", ARRAY, [1.0, float("nan")], F32)
    files = three(pairs=(NAME, scores))
    files[SECOND] = build((NAME, scores, *split_pairs(1, 3, 4), Pair(b"more", BOOL, True)), (C,))
    with GgufFile.open(write_files(tmp_path, files)) as file:
        assert "more" not in file.metadata
