"""The checkpoint reader on folders that are as they should be."""

from __future__ import annotations

import gc
import mmap
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from safetensorsbuilder import INDEX, SINGLE, Entry, dumps, packed, sharded, small, tensors, write

from ostinato.errors.formats import ModelFileClosed, UnsupportedEncoding
from ostinato.formats.encodings import codec
from ostinato.formats.pages import release
from ostinato.formats.safetensors import Checkpoint, SafeTensor
from ostinato.formats.safetensors.dtypes import BITS
from ostinato.ir import encoding as e

# The example that the format's reference implementation tests itself with: float32 [1, 2, 3], 0 to 5.
REFERENCE = (
    b'@\0\0\0\0\0\0\0{"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}}'
    b"\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@"
)


def test_the_reference_example(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": b"{}", SINGLE: REFERENCE})
    with Checkpoint.open(tmp_path) as checkpoint:
        tensor = checkpoint.tensors["attn.0"]
        assert tensor == SafeTensor("attn.0", "F32", (1, 2, 3), tmp_path / SINGLE, 72, 24)
        assert tensor.encoding is e.F32
        assert checkpoint.data(tensor).view("<f4").tolist() == [[[0, 1, 2], [3, 4, 5]]]


def test_a_single_file(tmp_path: Path) -> None:
    with Checkpoint.open(write(tmp_path, small())) as checkpoint:
        assert checkpoint.path == tmp_path
        assert [t.name for t in checkpoint.tensors.values()] == list(checkpoint.tensors)
        assert list(checkpoint.tensors)[:3] == ["embed.weight", "q.weight", "norm.weight"]
        shapes = {
            "embed.weight": (3, 16),
            "q.weight": (2, 6),
            "norm.weight": (10,),
            "scale": (4,),
            "none": (0, 14),
        }
        for index, name in enumerate(shapes):
            data = checkpoint.data(checkpoint.tensors[name])
            assert data.shape == shapes[name]
            assert data.dtype == np.uint8
            assert (data == index + 1).all()
            assert not data.flags.writeable
        assert "8 tensors, open" in repr(checkpoint)
        with pytest.raises(TypeError):
            checkpoint.tensors["new"] = checkpoint.tensors["q.weight"]  # type: ignore[index]


def test_codecs_read_its_data(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0, 0.0], [3.25, 65504.0, -1.0]], np.float32)
    halves = values.astype("<f2").tobytes()
    brains = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    head = {
        "f": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "h": {"dtype": "F16", "shape": [2, 3], "data_offsets": [24, 36]},
        "b": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [36, 48]},
    }
    data = values.tobytes() + halves + brains
    with Checkpoint.open(write(tmp_path, {"config.json": b"{}", SINGLE: packed(head, data)})) as checkpoint:
        for name, encoding in (("f", e.F32), ("h", e.F16), ("b", e.BF16)):
            tensor = checkpoint.tensors[name]
            assert tensor.encoding is encoding
            decoded = codec(encoding, tensor=name, file="").decode(checkpoint.data(tensor))
            # 65504 needs more mantissa than bfloat16 has: its bits were cut.
            expected = values if name != "b" else (values.view(np.uint32) >> 16 << 16).view(np.float32)
            np.testing.assert_array_equal(decoded, expected)


def test_a_sharded_folder(tmp_path: Path) -> None:
    with Checkpoint.open(write(tmp_path, sharded())) as checkpoint:
        assert list(checkpoint.tensors) == ["a", "b", "c"]
        assert [t.file.name[:11] for t in checkpoint.tensors.values()] == [
            "model-00001",
            "model-00002",
            "model-00002",
        ]
        assert [int(checkpoint.data(t).max()) for t in checkpoint.tensors.values()] == [1, 1, 2]


def test_the_single_file_wins_over_an_index(tmp_path: Path) -> None:
    with Checkpoint.open(write(tmp_path, {**sharded(), **small()})) as checkpoint:
        assert "embed.weight" in checkpoint.tensors
        assert "a" not in checkpoint.tensors


@pytest.mark.parametrize("size", [{}, {"total_size": 10**30}, {"total_size": "many"}, None])
def test_the_index_metadata_is_not_read(size: object, tmp_path: Path) -> None:
    files = sharded()
    weight_map = {"b": "b.safetensors"}
    files[INDEX] = dumps({"metadata": size, "weight_map": weight_map, "more": [1]})
    files["b.safetensors"] = tensors(Entry("b", "F32", (1,), 4))
    with Checkpoint.open(write(tmp_path, files)) as checkpoint:
        assert list(checkpoint.tensors) == ["b"]


def test_tensors_in_any_order_and_unknown_keys(tmp_path: Path) -> None:
    head = {
        "late": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6], "future": 1},
        "empty": {"data_offsets": [2, 2], "shape": [1 << 40, 0, 3], "dtype": "F32"},
        "early": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]},
        "__metadata__": None,
    }
    files = {"config.json": b"{}", SINGLE: packed(dumps(head) + b"   ", bytes(6))}
    with Checkpoint.open(write(tmp_path, files)) as checkpoint:
        assert list(checkpoint.tensors) == ["late", "empty", "early"]
        assert checkpoint.data(checkpoint.tensors["empty"]).shape == (1 << 40, 0, 12)


def test_no_tensors_at_all(tmp_path: Path) -> None:
    with Checkpoint.open(write(tmp_path, {"config.json": b"{}", SINGLE: packed({})})) as checkpoint:
        assert dict(checkpoint.tensors) == {}


@pytest.mark.parametrize("dtype", BITS)
def test_every_dtype_is_listed(dtype: str, tmp_path: Path) -> None:
    nbytes = 3 * BITS[dtype]
    files = {"config.json": b"{}", SINGLE: tensors(Entry("t", dtype, (6, 4), nbytes))}
    with Checkpoint.open(write(tmp_path, files)) as checkpoint:
        tensor = checkpoint.tensors["t"]
        assert (tensor.dtype, tensor.nbytes) == (dtype, nbytes)
        if dtype in ("F32", "F16", "BF16"):
            assert tensor.encoding.name == dtype
            assert checkpoint.data(tensor).nbytes == nbytes
            return
        for ask in (lambda: tensor.encoding, lambda: checkpoint.data(tensor)):
            with pytest.raises(UnsupportedEncoding) as caught:
                ask()
            assert caught.value.fields() == {
                "file": str(tmp_path / SINGLE),
                "tensor": "t",
                "encoding": dtype,
            }


def test_views_outlive_the_checkpoint(tmp_path: Path) -> None:
    with Checkpoint.open(write(tmp_path, small())) as checkpoint:
        tensor = checkpoint.tensors["q.weight"]
        data = checkpoint.data(tensor)
    assert (data == 2).all()
    assert "closed" in repr(checkpoint)
    checkpoint.close()
    with pytest.raises(ModelFileClosed) as caught:
        checkpoint.data(tensor)
    assert caught.value.file == str(tmp_path)
    assert pickle.loads(pickle.dumps(tensor)) == tensor


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
def test_the_mapping_goes_with_its_last_view(tmp_path: Path) -> None:
    def mapped() -> bool:
        gc.collect()
        return str(tmp_path) in Path("/proc/self/maps").read_text()

    checkpoint = Checkpoint.open(write(tmp_path, sharded()))
    data = checkpoint.data(checkpoint.tensors["a"])
    assert mapped()
    checkpoint.close()
    assert mapped()
    del data
    assert not mapped()


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="needs madvise")
def test_pages_can_be_let_go_and_come_back(tmp_path: Path) -> None:
    rows = 64
    files = {"config.json": b"{}", SINGLE: tensors(Entry("t", "F32", (rows, 1024), rows * 4096))}
    with Checkpoint.open(write(tmp_path, files)) as checkpoint:
        data = checkpoint.data(checkpoint.tensors["t"])
        assert release(data) >= (rows - 1) * 4096
        assert (data == 1).all()


def test_a_cache_of_links(tmp_path: Path) -> None:
    """Hub caches keep the bytes in blobs/ and a folder of links in snapshots/."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for index, (name, data) in enumerate({**sharded(), "tokenizer.json": b"{}"}.items()):
        (blobs / str(index)).write_bytes(data)
        (snapshot / name).symlink_to(f"../../blobs/{index}")
    (tmp_path / "link").symlink_to(snapshot)
    for path in (snapshot, tmp_path / "link"):
        with Checkpoint.open(str(path)) as checkpoint:
            assert list(checkpoint.tensors) == ["a", "b", "c"]
            assert checkpoint.text_file("tokenizer.json") == path / "tokenizer.json"


def test_text_files(tmp_path: Path) -> None:
    with Checkpoint.open(write(tmp_path, {**small(), "tokenizer.json": b"{}"})) as checkpoint:
        assert checkpoint.text_file("tokenizer.json") == tmp_path / "tokenizer.json"
        for absent in ("chat_template.jinja", "..", "."):
            assert checkpoint.text_file(absent) is None


def test_code_that_a_config_names_is_not_run(tmp_path: Path) -> None:
    evil = b"raise SystemExit('ran')"
    with Checkpoint.open(write(tmp_path, {**small(), "modeling_evil.py": evil})) as checkpoint:
        section = checkpoint.config.section("auto_map")
        assert section is not None
        assert section.text("AutoModel") == "modeling_evil.Evil"
