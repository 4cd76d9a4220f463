"""What the writer writes, ostinato's reader and the gguf package read back, to the bit."""

from __future__ import annotations

import operator
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from ggufbuilder import SMALL_PAIRS, small, write_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato.formats.gguf import GgufFile, write_gguf
from ostinato.formats.gguf.tensor_types import TENSOR_TYPES
from ostinato.ir import encoding as e

KINDS = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "?": 7, "u8": 10, "i8": 11, "f8": 12}
ALIGNMENTS = [8, 16, 32, 64, 256, 4096]
WRITTEN = (e.F32, e.F16, e.BF16, e.F64, e.I8, e.I32, e.Q8_0, e.Q4_1, e.Q6_K, e.IQ4_NL)

# Any bytes, as strings that were read have them.
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.binary(max_size=6).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@st.composite
def numbers(draw: st.DrawFn) -> Any:
    """A numpy scalar or array of any width that the format has, of any bytes."""
    dtype = np.dtype(draw(st.sampled_from(list(KINDS))))
    count = draw(st.one_of(st.none(), st.integers(0, 4)))
    raw = draw(st.binary(min_size=dtype.itemsize * 4, max_size=dtype.itemsize * 4))
    values = np.frombuffer(raw, np.uint8).astype(bool)[:4] if dtype.kind == "b" else np.frombuffer(raw, dtype)
    return values[0] if count is None else values[:count]


plain = st.one_of(st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(width=32), texts)
metadata = st.dictionaries(names, st.one_of(plain, numbers(), st.lists(texts, max_size=4)), max_size=6)


@st.composite
def tensors(draw: st.DrawFn) -> list[tuple[str, tuple[int, ...], e.Encoding, bytes]]:
    made = []
    for name in draw(st.lists(names.filter(lambda n: len(n.encode()) <= 63), max_size=5, unique=True)):
        encoding = draw(st.sampled_from(WRITTEN))
        outer = draw(st.lists(st.integers(1, 3), max_size=3))
        shape = (*outer, encoding.block * draw(st.integers(1, 3)))
        nbytes = int(np.prod(outer, dtype=int)) * encoding.row_bytes(shape[-1])
        made.append((name, shape, encoding, np.random.default_rng(nbytes).bytes(nbytes)))
    return made


def same(one: object, other: object) -> bool:
    """Equal to the bit and in the width; NaN equals itself, though its spare bits may differ."""
    if isinstance(one, np.ndarray | np.generic) or isinstance(other, np.ndarray | np.generic):
        one, other = np.asarray(one), np.asarray(other)
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return type(one) is type(other) and one == other


def expected(value: Any) -> Any:
    """What `Metadata.typed` gives for a value that was written: the table of `encode`."""
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, bool | str | list | np.ndarray | np.generic):
        return value
    if isinstance(value, float):
        return np.float32(value)
    return np.uint32(value) if 0 <= value < 1 << 32 else np.int64(value) if value < 0 else np.uint64(value)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(metadata=metadata, tensors=tensors(), alignment=st.sampled_from(ALIGNMENTS), pieces=st.integers(0, 9))
def test_what_is_written_is_read(
    tmp_path: Path, metadata: dict[str, Any], tensors: list[Any], alignment: int, pieces: int
) -> None:
    path = tmp_path / "m.gguf"
    cut = [(n, s, c, (lambda d=d: chunks(d, pieces)) if pieces else d) for n, s, c, d in tensors]
    write_gguf(path, metadata, cut, alignment=alignment)
    with GgufFile.open(path) as file:
        assert (file.version, file.alignment) == (3, alignment)
        typed = file.metadata.typed()
        if alignment != 32:
            assert same(typed.pop("general.alignment"), np.uint32(alignment))
        assert list(typed) == list(metadata)
        for key, value in metadata.items():
            assert same(typed[key], expected(value)), key
        assert [(t.name, t.shape, t.encoding) for t in file.tensors.values()] == [t[:3] for t in tensors]
        for tensor, (_, _, _, data) in zip(file.tensors.values(), tensors, strict=True):
            assert tensor.offset % alignment == 0
            assert file.data(tensor).tobytes() == data
        assert not tensors or file.nbytes % alignment == 0  # ggml reads the last tensor with its padding
    again = tmp_path / "again.gguf"
    copy(path, again)
    assert again.read_bytes() == path.read_bytes()


def chunks(data: bytes, size: int) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


def copy(source: Path, target: Path) -> None:
    with GgufFile.open(source) as file:
        write_gguf(
            target,
            file.metadata.typed(),
            ((t.name, t.shape, t.encoding, file.data(t)) for t in file.tensors.values()),
        )


@pytest.mark.parametrize("alignment", [None, 8, 64, 1 << 21])
def test_the_gguf_package_reads_it(tmp_path: Path, alignment: int | None) -> None:
    values = {
        "general.architecture": "llama",
        "text": "Zoë ▁ 日本",
        "yes": True,
        "small": 7,
        "negative": -7,
        "large": 1 << 40,
        "f32": 0.1,
        "f64": np.float64(0.1),
        "i8": np.int8(-8),
        "texts": ["a", "", "é"],
        "i16s": np.array([1, -2], ">i2"),
        "flags": np.array([True, False]),
    }
    arrays = {
        "norm": np.arange(7, dtype=np.float32),
        "cube": np.arange(2 * 3 * 4, dtype=np.float16).reshape(2, 3, 4),
        "turned": np.arange(12, dtype=">f4").reshape(3, 4).T,
    }
    codes = {"norm": e.F32, "cube": e.F16, "turned": e.F32}
    quants = gguf.quants.quantize(np.ones((4, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    path = tmp_path / "m.gguf"
    sources = [(name, array.shape, codes[name], array) for name, array in arrays.items()]
    write_gguf(path, values, [*sources, ("q", (4, 64), e.Q8_0, quants)], alignment=alignment)

    reader = gguf.GGUFReader(path)
    assert reader.alignment == (alignment or 32)
    kinds = gguf.GGUFValueType
    want = [kinds.STRING, kinds.STRING, kinds.BOOL, kinds.UINT32, kinds.INT64, kinds.UINT64, kinds.FLOAT32]
    assert [reader.fields[key].types[0] for key in values][:7] == want
    assert reader.fields["f64"].types == [kinds.FLOAT64]
    assert reader.fields["i8"].types == [kinds.INT8]
    assert reader.fields["i16s"].types == [kinds.ARRAY, kinds.INT16]
    for key, value in values.items():
        found = reader.fields[key].contents()
        assert found == (
            np.float32(0.1) if key == "f32" else value.tolist() if hasattr(value, "tolist") else value
        )
    assert [tensor.name for tensor in reader.tensors] == [*arrays, "q"]
    for tensor in reader.tensors[:3]:
        np.testing.assert_array_equal(tensor.data, arrays[tensor.name])
        assert tensor.data_offset % (alignment or 32) == 0
    assert reader.tensors[3].tensor_type == gguf.GGMLQuantizationType.Q8_0
    assert tuple(reader.tensors[3].shape) == (64, 4)
    np.testing.assert_array_equal(reader.tensors[3].data, quants)


@pytest.mark.parametrize("version", [2, 3])
def test_a_copy_has_every_width_and_every_byte(tmp_path: Path, version: int) -> None:
    """The builder's file has each kind of field, a string that is no UTF-8 and an empty array among them."""
    path = write_files(tmp_path, {"m.gguf": small(version)})
    copy(path, tmp_path / "copy.gguf")
    with GgufFile.open(path) as one, GgufFile.open(tmp_path / "copy.gguf") as other:
        assert list(other.metadata) == [pair.key.decode() for pair in SMALL_PAIRS]
        for key, value in one.metadata.typed().items():
            assert same(value, other.metadata.typed()[key]), key
        assert one.tensors.keys() == other.tensors.keys()
        for name, tensor in one.tensors.items():
            assert one.data(tensor).tobytes() == other.data(other.tensors[name]).tobytes()
        assert one.metadata_bytes == other.metadata_bytes
    if version == 3:
        head = small().offset("padding")
        assert (tmp_path / "copy.gguf").read_bytes()[:head] == path.read_bytes()[:head]


@pytest.mark.parametrize("alignment", [32, 64])
def test_a_file_of_the_gguf_writer_is_copied_to_the_byte(tmp_path: Path, alignment: int) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    writer.add_float32("f", 0.1)
    writer.add_float64("d", 0.1)
    writer.add_int8("i", -3)
    writer.add_token_list(["<s>", "é", b"\xff\xfe"])
    writer.add_token_scores([0.5, -1.0, 0.0])
    writer.add_array("flags", [True, False])
    for name, dtype in (("a", np.float32), ("b", np.float16)):
        writer.add_tensor(name, np.arange(15, dtype=dtype).reshape(3, 5))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    copy(tmp_path / "m.gguf", tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()


def test_every_encoding(tmp_path: Path) -> None:
    sources = [(c.name, (2, c.block), c, bytes([n]) * (2 * c.block_bytes)) for n, c in TENSOR_TYPES.items()]
    write_gguf(tmp_path / "m.gguf", {}, sources)
    with GgufFile.open(tmp_path / "m.gguf") as file:
        for number, tensor in zip(TENSOR_TYPES, file.tensors.values(), strict=True):
            assert tensor.encoding.name == tensor.name
            assert (file.data(tensor) == number).all()


def test_parts_of_a_split_model_can_be_written(tmp_path: Path) -> None:
    for index in range(2):
        numbers = {"split.no": index, "split.count": 2, "split.tensors.count": 2}
        source = (f"t{index}", (8,), e.I8, bytes([index]) * 8)
        write_gguf(tmp_path / f"m-0000{index + 1}-of-00002.gguf", numbers, [source])
    with GgufFile.open(tmp_path / "m-00001-of-00002.gguf") as file:
        assert [int(file.data(tensor)[0, ...].flat[0]) for tensor in file.tensors.values()] == [0, 1]
        typed = file.metadata.typed()  # the widths that llama.cpp insists on
        assert [typed[f"split.{key}"].dtype for key in ("no", "count", "tensors.count")] == ["u2", "u2", "i4"]


def test_a_file_can_be_replaced_by_a_changed_copy_of_itself(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"m.gguf": small()})
    with GgufFile.open(path) as file:
        before = file.data(file.tensors["deep"]).tobytes()
        write_gguf(
            path,
            {**file.metadata.typed(), "flag": False},
            [(t.name, t.shape, t.encoding, file.data(t)) for t in file.tensors.values()],
        )
    with GgufFile.open(path) as file:
        assert file.metadata.flag("flag") is False
        assert file.data(file.tensors["deep"]).tobytes() == before
    assert os.listdir(tmp_path) == ["m.gguf"]


def test_memory_stays_at_one_piece(tmp_path: Path) -> None:
    piece, count = 1 << 16, 64

    def pieces() -> Iterator[np.ndarray[Any, Any]]:
        return (np.full(piece, i, np.uint8) for i in range(count))

    sources = ((f"t{i}", (piece * count,), e.I8, pieces) for i in range(4))
    tracemalloc.start()
    try:
        write_gguf(tmp_path / "m.gguf", {}, sources)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * piece
    with GgufFile.open(tmp_path / "m.gguf") as file:
        assert file.nbytes > 4 * piece * count
        assert (file.data(file.tensors["t3"]).reshape(count, piece) == np.arange(count)[:, None]).all()


@pytest.mark.parametrize(
    "wrap", [bytearray, memoryview, lambda b: memoryview(b)[::-1], operator.itemgetter(slice(None))]
)
def test_any_bytes_like_data(tmp_path: Path, wrap: Any) -> None:
    write_gguf(tmp_path / "m.gguf", {}, [("t", (256,), e.I8, wrap(bytes(range(256))))])
    with GgufFile.open(tmp_path / "m.gguf") as file:
        assert file.data(file.tensors["t"]).tobytes() == bytes(wrap(bytes(range(256))))
