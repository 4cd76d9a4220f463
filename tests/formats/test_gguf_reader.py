"""The GGUF reader on files that are as they should be."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path

import gguf
import numpy as np
import pytest
from ggufbuilder import ARRAY, BOOL, F32, SMALL_ENTRIES, STRING, U8, U32, Entry, Pair, build, small

from ostinato.errors.formats import ModelFileClosed, ModelFormatError
from ostinato.formats.encodings import CODECS
from ostinato.formats.gguf import GgufFile
from ostinato.formats.gguf.tensor_types import TENSOR_TYPES
from ostinato.ir import encoding as e

SCALARS = {
    "u8": (gguf.GGUFValueType.UINT8, 255),
    "i8": (gguf.GGUFValueType.INT8, -128),
    "u16": (gguf.GGUFValueType.UINT16, 65535),
    "i16": (gguf.GGUFValueType.INT16, -32768),
    "u32": (gguf.GGUFValueType.UINT32, 2**32 - 1),
    "i32": (gguf.GGUFValueType.INT32, -(2**31)),
    "u64": (gguf.GGUFValueType.UINT64, 2**64 - 1),
    "i64": (gguf.GGUFValueType.INT64, -(2**63)),
    "f32": (gguf.GGUFValueType.FLOAT32, 0.5),
    "f64": (gguf.GGUFValueType.FLOAT64, 0.1),
    "yes": (gguf.GGUFValueType.BOOL, True),
    "no": (gguf.GGUFValueType.BOOL, False),
    "text": (gguf.GGUFValueType.STRING, "Zoë ▁ 日本"),
    "empty": (gguf.GGUFValueType.STRING, ""),
}


def write(path: Path, add: object, **tensors: np.ndarray) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    add(writer)  # type: ignore[operator]
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_scalar_type(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        for key, (kind, value) in SCALARS.items():
            writer.add_key_value(key, value, kind)

    with GgufFile.open(write(tmp_path / "m.gguf", add)) as file:
        assert file.version == 3
        assert list(file.metadata) == ["general.architecture", *SCALARS]
        for key, (_, value) in SCALARS.items():
            assert file.metadata[key] == value
            assert type(file.metadata[key]) is type(value)


@pytest.mark.parametrize("code", list("BbHhIiQqfd"))
def test_every_numeric_array(tmp_path: Path, code: str) -> None:
    kinds = dict(zip("BbHhIiQqfd", (0, 1, 2, 3, 4, 5, 10, 11, 6, 12), strict=True))
    dtype = np.dtype(code)
    values = [0, 1, 100] if dtype.kind == "f" else [0, 7, np.iinfo(dtype).min, np.iinfo(dtype).max]
    path = tmp_path / "m.gguf"
    path.write_bytes(build((Pair(b"a", ARRAY, [dtype.type(v).item() for v in values], kinds[code]),)).data)
    with GgufFile.open(path) as file:
        array = file.metadata.numbers("a")
        assert array.dtype == dtype
        assert array.tolist() == values
        assert not array.flags.writeable


def test_arrays_of_the_gguf_writer(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_array("ints", [1, -2, 3])
        writer.add_array("floats", [0.5, -1.5])
        writer.add_array("flags", [True, False, True])
        writer.add_array("texts", ["a", "", "é"])

    with GgufFile.open(write(tmp_path / "m.gguf", add)) as file:
        assert file.metadata.numbers("ints").tolist() == [1, -2, 3]
        assert file.metadata.numbers("floats").tolist() == [0.5, -1.5]
        flags = file.metadata.numbers("flags")
        assert flags.dtype == np.bool_
        assert flags.tolist() == [True, False, True]
        assert file.metadata.texts("texts") == ["a", "", "é"]


def test_metadata_and_decoded_tensors_outlive_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((6, 64)).astype(np.float32)
    path = write(tmp_path / "m.gguf", lambda w: w.add_array("scores", [0.25, 4.0]), w=weights)
    with GgufFile.open(path) as file:
        decoded = CODECS[e.F32].decode(file.data(file.tensors["w"]))
    path.unlink()
    gc.collect()
    np.testing.assert_array_equal(decoded, weights)
    assert file.metadata.numbers("scores").tolist() == [0.25, 4.0]


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_tensors_of_the_gguf_writer(tmp_path: Path, name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    weights = np.random.default_rng(5).standard_normal((3, 5, 96)).astype(np.float32)
    raw = gguf.quants.quantize(weights, kind)
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("norm", np.arange(7, dtype=np.float32))
    writer.add_tensor("w", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with GgufFile.open(path) as file:
        assert list(file.tensors) == ["norm", "w"]
        tensor = file.tensors["w"]
        assert tensor.shape == weights.shape
        assert tensor.encoding.name == name
        data = file.data(tensor)
        assert data.shape == (3, 5, tensor.encoding.row_bytes(96))
        assert data.nbytes == tensor.nbytes
        assert data.tobytes() == raw.tobytes()
        np.testing.assert_array_equal(CODECS[tensor.encoding].decode(data), gguf.quants.dequantize(raw, kind))


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions(tmp_path: Path, version: int) -> None:
    layout = small(version)
    path = tmp_path / "m.gguf"
    path.write_bytes(layout.data)
    with GgufFile.open(str(path)) as file:
        assert file.path == path
        assert file.version == version
        assert file.metadata_bytes == layout.offset("padding")
        assert file.metadata.integer("u64") == 1 << 63
        assert file.metadata.numbers("none").size == 0
        assert [t.name for t in file.tensors.values()] == [entry.name.decode() for entry in SMALL_ENTRIES]
        for index, (tensor, entry) in enumerate(zip(file.tensors.values(), SMALL_ENTRIES, strict=True)):
            assert tensor.shape == entry.dims[::-1]
            assert tensor.encoding is TENSOR_TYPES[entry.type]
            assert (file.data(tensor) == index + 1).all()


def test_bytes_that_are_no_utf8_come_back_from_string_values(tmp_path: Path) -> None:
    raw = [bytes([b]) for b in range(256)] + [b"\xed\xa0\x80", "é".encode()]
    path = tmp_path / "m.gguf"
    path.write_bytes(build((Pair(b"tokens", ARRAY, raw, STRING), Pair(b"one", STRING, b"\xc3("))).data)
    with GgufFile.open(path) as file:
        tokens = file.metadata.texts("tokens")
        assert [t.encode("utf-8", "surrogateescape") for t in tokens] == raw
        assert tokens[-1] == "é"
        assert file.metadata.text("one").encode("utf-8", "surrogateescape") == b"\xc3("


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_alignments(tmp_path: Path, alignment: int) -> None:
    pairs = (Pair(b"general.alignment", U32, alignment),)
    entries = (Entry(b"a", (3,), 0, 12), Entry(b"b", (5,), 0, 20))
    path = tmp_path / "m.gguf"
    path.write_bytes(build(pairs, entries, alignment=alignment).data)
    with GgufFile.open(path) as file:
        assert file.alignment == alignment
        assert all(tensor.offset % alignment == 0 for tensor in file.tensors.values())
        assert [int(file.data(tensor)[0]) for tensor in file.tensors.values()] == [1, 2]


def test_gaps_and_any_order_of_the_data_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build((), (Entry(b"a", (3,), 0, 12, start=128), Entry(b"b", (5,), 0, 20, start=0))).data)
    with GgufFile.open(path) as file:
        assert list(file.tensors) == ["a", "b"]
        assert [int(file.data(tensor)[0]) for tensor in file.tensors.values()] == [1, 2]


def test_every_known_type_opens_whether_or_not_it_has_a_codec(tmp_path: Path) -> None:
    entries = tuple(
        Entry(encoding.name.encode(), (encoding.block * 2, 3), number, encoding.block_bytes * 6)
        for number, encoding in TENSOR_TYPES.items()
    )
    path = tmp_path / "m.gguf"
    path.write_bytes(build((), entries).data)
    with GgufFile.open(path) as file:
        for name, tensor in file.tensors.items():
            assert tensor.encoding.name == name
            assert file.data(tensor).shape == (3, tensor.encoding.block_bytes * 2)


def test_type_numbers_names_and_sizes_are_those_of_the_gguf_package() -> None:
    for kind, size in gguf.GGML_QUANT_SIZES.items():
        if kind == gguf.GGMLQuantizationType.Q8_1:
            continue  # the package has 40 bytes, ggml's block_q8_1 is 36: 2 * f16 + 32 * int8
        encoding = TENSOR_TYPES[kind]
        assert (encoding.name, encoding.block, encoding.block_bytes) == (kind.name, *size)
    assert TENSOR_TYPES[9].block_bytes == 36


def test_data_is_a_read_only_view_without_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small().data)
    with GgufFile.open(path) as file:
        first, again = (file.data(file.tensors["embed.weight"]) for _ in range(2))
        assert np.shares_memory(first, again)
        assert not first.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            first[0, 0] = 1
    assert (first == 1).all()  # a view keeps the mapping alive


def test_closing(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small().data)
    file = GgufFile.open(path)
    assert "open" in repr(file)
    file.close()
    file.close()
    assert "closed" in repr(file)
    with pytest.raises(ModelFileClosed, match="closed"):
        file.data(file.tensors["deep"])
    assert file.metadata.flag("flag") is True


def test_a_vocabulary_of_262144_tokens(tmp_path: Path) -> None:
    count = 1 << 18
    tokens = [f"▁token{i}".encode() for i in range(count)]
    path = write(tmp_path / "m.gguf", lambda w: (w.add_token_list(tokens), w.add_token_scores([0.5] * count)))
    with GgufFile.open(path) as file:
        read = file.metadata.texts("tokenizer.ggml.tokens")
        assert len(read) == count
        assert (read[0], read[-1]) == ("▁token0", f"▁token{count - 1}")
        assert file.metadata.numbers("tokenizer.ggml.scores").shape == (count,)


def test_errors_survive_pickling() -> None:
    error = ModelFormatError("m.gguf", "version", "2 or 3", "9", 4)
    copy = pickle.loads(pickle.dumps(error))
    assert copy.fields() == error.fields()
    assert str(copy) == "m.gguf: version at byte 4: expected 2 or 3, got 9"
    assert "fetch it again" in copy.remedy


def test_a_message_shows_no_control_characters_and_no_megabytes() -> None:
    error = ModelFormatError("m.gguf", "a\x1b[31m\udcff" + "x" * 10_000, "1", "2")
    assert "\x1b" not in str(error)
    assert len(str(error)) < 400
    str(error).encode("utf-8")


def test_flags_may_be_only_booleans_in_arrays_too(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build((Pair(b"b", BOOL, True), Pair(b"u", U8, 1), Pair(b"f", ARRAY, [0.5], F32))).data)
    with GgufFile.open(path) as file:
        assert file.metadata.flag("b") is True
        assert file.metadata.integer("u") == 1
        assert file.metadata.numbers("f").dtype == np.float32
