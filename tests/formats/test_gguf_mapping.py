"""Files as the system has them: large, read-only, shortened, replaced; and their pages in memory."""

from __future__ import annotations

import mmap
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from ggufbuilder import Entry, build, small, split_model, write_files

from ostinato.errors.formats import ModelFileChanged, ModelFormatError
from ostinato.formats import mapping
from ostinato.formats import pages as page_module
from ostinato.formats.gguf import GgufFile
from ostinato.formats.pages import release
from sabotage import goes_red, nothing

GIB = 1 << 30
MIB = 1 << 20


def sparse(path: Path, entries: tuple[Entry, ...]) -> Path:
    """A file whose tensors are holes but for their first and last byte; skips where holes take room."""
    layout = build((), entries, body=False)
    start = len(layout.data)
    with path.open("wb") as file:
        file.write(layout.data)
        for number, entry in enumerate(entries, 1):
            assert entry.start is not None
            for at in (entry.start, entry.start + entry.nbytes - 1):
                if os.name != "posix":
                    pytest.skip("no sparse files here")
                file.seek(start + at)
                file.write(bytes([number]))
    if path.stat().st_blocks * 512 > MIB:
        path.unlink()
        pytest.skip("this file system has no sparse files")
    return path


def test_offsets_beyond_4_gib(tmp_path: Path) -> None:
    far = 5 * GIB
    entries = (
        Entry(b"near", (8,), 0, 32, 0),
        Entry(b"wide", (1 << 20, 1 << 10), 0, 4 * GIB, 1 << 20),  # 4 GiB by itself
        Entry(b"far", (4, 2), 0, 32, far),
    )
    with GgufFile.open(sparse(tmp_path / "m.gguf", entries)) as file:
        assert file.nbytes > far
        assert file.tensors["far"].offset > far
        for number, tensor in enumerate(file.tensors.values(), 1):
            data = file.data(tensor)
            assert data.nbytes == tensor.nbytes
            assert (data.flat[0], data.flat[-1]) == (number, number)


def test_an_end_beyond_4_gib_that_the_file_does_not_have(tmp_path: Path) -> None:
    path = sparse(tmp_path / "m.gguf", (Entry(b"far", (8,), 0, 32, 5 * GIB),))
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(ModelFormatError) as caught:
        GgufFile.open(path)
    assert caught.value.field == "far: offset"


def test_a_read_only_file_in_a_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    path = write_files(folder, {"m.gguf": small()})
    path.chmod(0o444)
    folder.chmod(0o555)
    try:
        with GgufFile.open(path) as file:
            assert (file.data(file.tensors["embed.weight"]) == 1).all()
    finally:
        folder.chmod(0o755)


def expect_noticed(path: Path) -> None:
    """A file of two tensors loses the second one's last byte while it is open."""
    layout = build((), (Entry(b"a", (8,), 0, 32), Entry(b"b", (8,), 0, 32)))
    path.write_bytes(layout.data)
    with GgufFile.open(path) as file:
        a, b = file.tensors.values()
        os.truncate(path, len(layout.data) - 1)
        assert (file.data(a) == 1).all()
        with pytest.raises(ModelFileChanged) as caught:
            file.data(b)
        assert isinstance(caught.value, OSError)
        assert caught.value.fields() == {
            "file": str(path),
            "tensor": "b",
            "needed": len(layout.data),
            "size": len(layout.data) - 1,
        }
        assert "rename" in caught.value.remedy
        assert pickle.loads(pickle.dumps(caught.value)).fields() == caught.value.fields()
        path.write_bytes(layout.data + b"longer")
        assert (file.data(b) == 2).all()


def test_a_file_that_shrinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(
        monkeypatch, mapping, "check_not_shortened", nothing, lambda: expect_noticed(tmp_path / "m.gguf")
    )


def test_a_part_that_shrinks(tmp_path: Path) -> None:
    parts = split_model((Entry(b"a", (8,), 0, 32),), (Entry(b"b", (8,), 0, 32),))
    with GgufFile.open(write_files(tmp_path, parts)) as file:
        os.truncate(file.parts[1], 100)
        assert (file.data(file.tensors["a"]) == 1).all()
        with pytest.raises(ModelFileChanged) as caught:
            file.data(file.tensors["b"])
        assert caught.value.file == str(file.parts[1])


def test_a_file_that_is_replaced_or_removed_stays_as_it_was(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"m.gguf": small()})
    with GgufFile.open(path) as file:
        before = [file.data(tensor).tobytes() for tensor in file.tensors.values()]
        (tmp_path / "new").write_bytes(b"short")
        (tmp_path / "new").rename(path)
        assert [file.data(tensor).tobytes() for tensor in file.tensors.values()] == before
        path.unlink()
        assert [file.data(tensor).tobytes() for tensor in file.tensors.values()] == before


PAGED = pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="pages cannot be released here")


def large(path: Path) -> bytes:
    """A file of three tensors, the second of 4 MiB that starts and ends within pages; returns its bytes."""
    entries = (Entry(b"a", (8,), 0, 32), Entry(b"w", (MIB,), 0, 4 * MIB), Entry(b"z", (8,), 0, 32))
    layout = build((), entries, body=False)
    body = np.random.default_rng(1).integers(0, 256, 4 * MIB + 64, np.uint8).tobytes()
    path.write_bytes(bytes(layout.data) + body)
    return body[32 : 32 + 4 * MIB]


def resident(path: Path) -> int:
    """Bytes of the file that are in this process's memory."""
    kib = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split(" ", 1)[0].count("-") == 1:  # the line that begins a mapping
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            kib += int(line.split()[1])
    return kib * 1024


@PAGED
def test_released_pages_leave_memory_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    want = large(path)
    with GgufFile.open(path) as file:
        data = file.data(file.tensors["w"])
    assert data.tobytes() == want
    before = resident(path) if Path("/proc/self/smaps").exists() else None
    assert 4 * MIB - 2 * mmap.PAGESIZE <= release(data) <= 4 * MIB
    if before is not None:
        assert before >= 4 * MIB
        assert resident(path) <= 4 * mmap.PAGESIZE
    assert data.tobytes() == want


@PAGED
def test_a_view_of_a_tensor_releases_its_own_pages(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    want = large(path)
    with GgufFile.open(path) as file:
        data = file.data(file.tensors["w"])
        half = data.view("<u4").reshape(1024, -1)[512:]
        assert 2 * MIB - 2 * mmap.PAGESIZE <= release(half) <= 2 * MIB
        assert data.tobytes() == want


@PAGED
def test_neighbours_keep_their_pages(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    large(path)
    with GgufFile.open(path) as file:
        assert release(file.data(file.tensors["a"])) == 0
        assert release(file.data(file.tensors["z"])) == 0


def test_what_is_no_mapped_tensor_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    want = large(path)
    assert release(np.zeros(1 << 16)) == 0
    assert release(np.frombuffer(bytes(1 << 16), np.uint8)) == 0
    with path.open("rb") as handle:
        private = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY)
    changed = np.frombuffer(private, np.uint8)
    changed[:] = 7
    assert release(changed) == 0
    assert (changed == 7).all()
    with GgufFile.open(path) as file:
        data = file.data(file.tensors["w"])
        assert release(data[::2]) == 0
        monkeypatch.setattr(page_module, "_DONTNEED", None)  # Windows
        assert release(data) == 0
        monkeypatch.setattr(page_module, "_DONTNEED", 0x7FFF)  # no such advice: the system refuses it
        assert release(data) == 0
        assert data.tobytes() == want


def test_the_head_is_read_through_its_own_copy(tmp_path: Path) -> None:
    """Metadata stays when the file's first bytes are overwritten in place."""
    path = write_files(tmp_path, {"m.gguf": small()})
    with GgufFile.open(path) as file:
        with path.open("r+b") as handle:
            handle.write(struct.pack("<Q", 0) * 8)
        assert file.metadata.text("general.architecture") == "llama"
