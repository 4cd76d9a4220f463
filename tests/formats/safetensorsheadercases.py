"""One constructed weights file for each way its header can be wrong."""

from __future__ import annotations

from safetensorsbuilder import (
    Entry,
    packed,
    sharded,
    tensors,
)
from safetensorscases import DEEP, SECOND, Case, head

from ostinato.formats.safetensors import guards


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def broken(name: str, guard: str, value: object, what: str, got: str = "", data: bytes = bytes(8)) -> Case:
    """The header's only entry, `w`, is wrong."""
    return head(f"{name}", guard, packed({"w": value}, data), f"w: {what}" if what else "w", None, got)


def header_cases() -> list[Case]:
    ok = tensors(Entry("w", "F32", (2,), 8))

    def length(value: int, got: str = "") -> Case:
        data = value.to_bytes(8, "little") + ok[8:]
        return head(f"header length {value}", "check_header_length", data, "header length", 0, got)

    def shape(value: object, guard: str = "check_shape", got: str = "") -> Case:
        return broken(f"shape {value!r}"[:60], guard, entry(shape=value), "shape", got)

    def offsets(value: object, guard: str = "check_range", got: str = "") -> Case:
        return broken(f"data_offsets {value!r}"[:60], guard, entry(offsets=value), "data_offsets", got)

    def two(a: tuple[int, int], b: tuple[int, int], size: int) -> bytes:
        parts = {"a": a, "b": b}
        tiles = {name: entry("U8", [end - begin], [begin, end]) for name, (begin, end) in parts.items()}
        return packed(tiles, bytes(size))

    start = len(two((0, 4), (4, 8), 0))  # of the data

    return [
        head("no bytes", "check_length_field", b"", "header length", 0, "0 bytes"),
        head("seven bytes", "check_length_field", ok[:7], "header length", 0, "7 bytes"),
        length((1 << 64) - 1),
        length(1 << 63),
        length(len(ok) - 7, str(len(ok) - 7)),
        head(
            "an archive",
            "check_header_length",
            b"PK\x03\x04" + bytes(60) + b"\1",
            "header length",
            0,
            str(0x04034B50),
        ),
        head("length and no header", "check_header_start", bytes(8), "header", 8, "b''"),
        head("a space first", "check_header_start", packed(b" {}"), "header", 8, "' '"),
        head("a list", "check_header_start", packed([]), "header", 8, "'['"),
        head("no UTF-8", "refuse_bytes", packed(b'{"\xff":1}'), "header", 10),
        head("no JSON", "refuse_syntax", packed(b"{]"), "header", 9),
        head("padded with zeros", "refuse_syntax", packed(b"{}\0\0"), "header", 10),
        head("header cut", "refuse_syntax", packed(ok[8:18]), "header", 15),
        head("NaN", "refuse_constant", packed(b'{"w":NaN}'), "header", None, "NaN"),
        head(
            "-Infinity deep inside",
            "refuse_constant",
            packed(b'{"__metadata__":{"x":[-Infinity]}}'),
            "header",
        ),
        head("deep", "refuse_depth", packed(b'{"w":' + DEEP), "header"),
        head("a tensor twice", "check_keys_unique", packed(b'{"w":1,"w":1}'), "header", None, "'w'"),
        head("long integer", "check_digits", packed(b'{"w":' + b"1" * 101 + b"}"), "header"),
        *(
            head(
                f"metadata {value!r}",
                "check_metadata",
                packed({"__metadata__": value}),
                "__metadata__",
                None,
            )
            for value in (1, "pt", [], {"a": 1}, {"a": None}, {"a": {}})
        ),
        *(
            head(f"name {value[:9]!r}", "check_name", packed({value: entry()}, bytes(8)), "tensor name")
            for value in ("", "\ud800", "a\udfff", "x" * 65_536)
        ),
        *(broken(f"entry {v!r}", "check_object", v, "", guards.kind(v)) for v in (1, None, "F32", [1], True)),
        *(
            broken(f"dtype {value!r}", "check_dtype", entry(dtype=value), "dtype")
            for value in (None, 1, "", "f32", "F32 ", "Q4_0", ["F32"], {"F32": 1})
        ),
        broken("no dtype", "check_dtype", {"shape": [2], "data_offsets": [0, 8]}, "dtype", "null"),
        broken("no shape", "check_shape", {"dtype": "F32", "data_offsets": [0, 8]}, "shape", "null"),
        broken(
            "offsets of another name",
            "check_range",
            {**entry(offsets=None), "offsets": [0, 8]},
            "data_offsets",
        ),
        *(
            shape(value)
            for value in (2, "2", {"0": 2}, [-1], [-2, -1], [2.0], ["2"], [None], [[2]], [True, 2])
        ),
        shape([1] * 33 + [2], got="34"),
        shape([1 << 61], "check_extent"),
        shape([1 << 64, 2], "check_extent"),
        shape([1 << 32, 1 << 32], "check_extent"),  # wraps to 0 in 64 bits
        shape([1 << 61, 1 << 3, 2], "check_extent"),
        shape([0, 1 << 62, 2], "check_extent"),
        shape([10**90] * 32, "check_extent"),
        broken("half a byte", "check_whole_bytes", entry("F4", [3], [0, 1]), "shape", "12 bits", bytes(1)),
        broken("three quarters", "check_whole_bytes", entry("F6_E2M3", [1], [0, 0]), "shape", "6 bits", b""),
        *(
            offsets(value)
            for value in (
                "0",
                [0],
                [0, 8, 8],
                {"0": 0},
                [0, "8"],
                [0, 8.0],
                [False, 8],
                [None, 8],
                [[0], 8],
            )
        ),
        offsets([-8, 0], got="[-8, 0]"),
        offsets([8, 0], got="[8, 0]"),
        broken("one byte behind", "check_inside", entry("U8", [9], [0, 9]), "data_offsets", "9"),
        offsets([8, 16], "check_inside", "16"),
        offsets([1 << 64, (1 << 64) + 8], "check_inside"),
        offsets([10**40, 10**40 + 8], "check_inside"),
        offsets([0, 4], "check_length", "4 bytes"),
        broken("too short a shape", "check_length", entry(shape=[1]), "data_offsets", "8 bytes"),
        broken("bytes for nothing", "check_length", entry(shape=[0]), "data_offsets", "8 bytes"),
        broken("nothing for bytes", "check_length", entry(offsets=[0, 0]), "data_offsets", "0 bytes"),
        head("same place", "check_disjoint", two((0, 4), (0, 4), 4), "b: data_offsets", start),
        head("one byte shared", "check_disjoint", two((3, 8), (0, 4), 8), "a: data_offsets", start + 3),
        head("one within another", "check_disjoint", two((0, 8), (2, 4), 8), "b: data_offsets", start + 2),
        head("none within another", "check_disjoint", two((0, 8), (4, 4), 8), "b: data_offsets", start + 4),
        head("a hole before", "check_no_holes", two((2, 4), (4, 8), 8), "data", start),
        head("a hole between", "check_no_holes", two((0, 4), (6, 8), 8), "data", start + 4),
        head("a hole behind", "check_no_holes", two((0, 4), (4, 8), 9), "data", start + 8),
        head("only a hole", "check_no_holes", packed({}, b"hidden"), "data", 10),
        head("nothing in a hole", "check_no_holes", two((0, 4), (6, 6), 8), "data", start + 4),
        head("data cut", "check_inside", ok[:-1], "w: data_offsets", None, "8"),
        head("no data", "check_inside", ok[:-8], "w: data_offsets", None, "8"),
        Case(
            "header length in a shard",
            "check_header_length",
            {**sharded(), SECOND: b"\xff" * 8},
            file=SECOND,
            fields={"field": "header length", "offset": 0},
            got=str((1 << 64) - 1),
        ),
    ]
