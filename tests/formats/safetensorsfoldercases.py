"""One constructed folder for each way that its configs, its index or its set of files can be wrong."""

from __future__ import annotations

from safetensorsbuilder import (
    INDEX,
    SINGLE,
    Entry,
    Files,
    indexed,
    sharded,
    small,
    tensors,
)
from safetensorscases import DEEP, FIRST, SECOND, Case, text

from ostinato.errors import OstinatoError
from ostinato.errors.checkpoint import GgufFolder, IncompleteCheckpoint, MissingShards, PickledWeights


def without(files: Files, *names: str) -> Files:
    return {name: data for name, data in files.items() if name not in names}


def json_cases(file: str, field: str) -> list[Case]:
    """What can be wrong with any JSON file."""
    return [
        text("is empty", "refuse_syntax", file, b"", field, 0),
        text("is cut", "refuse_syntax", file, b'{"a": {"b": 1}', field, 14),
        text("is followed by more", "refuse_syntax", file, b"{} {}", field, 3),
        text("has a byte order mark", "refuse_syntax", file, b"\xef\xbb\xbf{}", field, 0),
        text("has a comment after é", "refuse_syntax", file, '{"é": 1 // x'.encode(), field, 9),
        text("is UTF-16", "refuse_bytes", file, "{}".encode("utf-16"), field, 0),
        text("has half a character", "refuse_bytes", file, b'{"a\xc3": 1}', field, 3, "0xc3"),
        text("is a list", "check_object", file, b"[]", field, None, "a list of 0"),
        text("is null", "check_object", file, b"null", field, None, "null"),
        text("is deep in lists", "refuse_depth", file, b'{"a":' + DEEP, field, None, "too many"),
        text("is deep in objects", "refuse_depth", file, b'{"a":' * 100_000, field, None, "too many"),
        text(
            "has 101 levels",
            "check_depth",
            file,
            b'{"a":' + b"[" * 100 + b"]" * 100 + b"}",
            field,
            None,
            "more",
        ),
        text("has a key twice", "check_keys_unique", file, b'{"a": 1, "\\u0061": 2}', field, None, "'a'"),
        text("has a nested key twice", "check_keys_unique", file, b'{"b": [{"x": 1, "x": 1}]}', field),
        text("has a long integer", "check_digits", file, b'{"a": ' + b"9" * 101 + b"}", field, None, "101"),
        text("has an endless integer", "check_digits", file, b'{"a": -' + b"9" * 99_999 + b"}", field),
    ]


def index_cases() -> list[Case]:
    def mapped(name: str, guard: str, weight_map: object, where: str, got: str = "") -> Case:
        return text(name, guard, INDEX, indexed(weight_map), where, None, got)

    def shard(value: object, got: str = "") -> Case:
        return mapped(f"shard {value!r}"[:60], "check_shard_name", {"a": value}, "weight_map.a", got)

    ok = {"b": SECOND, "a": FIRST, "c": SECOND}
    doubled = tensors(Entry("a", "F32", (1,), 4), Entry("b", "F32", (1,), 4), Entry("c", "F32", (1,), 4))
    return [
        text("NaN", "refuse_constant", INDEX, b'{"weight_map": NaN}', "index", None, "NaN"),
        *(
            mapped(f"weight_map {v!r}", "check_object", v, "weight_map")
            for v in (1, None, [], "a", [["a", FIRST]])
        ),
        text("no weight_map", "check_object", INDEX, b"{}", "weight_map", None, "null"),
        *(shard(value) for value in (1, None, [FIRST], {}, True, "", "model.bin", "x.SAFETENSORS")),
        *(
            shard(value)
            for value in (
                f"../{FIRST}",
                f"/tmp/{FIRST}",
                f"sub/{FIRST}",
                f"./{FIRST}",
                f"..\\{FIRST}",
                f"C:{FIRST}",
                "a\0.safetensors",
                "a\n.safetensors",
                "a\x1b[2J.safetensors",
                "\ud800.safetensors",
                "x" * 250 + ".safetensors",
            )
        ),
        Case(
            "a shard is missing",
            "check_shards_exist",
            without(sharded(), SECOND),
            MissingShards,
            INDEX,
            {"shards": (SECOND,)},
        ),
        Case(
            "all shards are missing",
            "check_shards_exist",
            without(sharded(), FIRST, SECOND),
            MissingShards,
            INDEX,
            {"shards": (FIRST, SECOND)},
        ),
        Case(
            "an unusable name",
            "check_shards_exist",
            {**sharded(), INDEX: indexed({"a": "é" * 150 + ".safetensors"})},
            MissingShards,
            INDEX,
            {"shards": ("é" * 150 + ".safetensors",)},
        ),
        mapped("in the wrong shard", "check_held", {**ok, "b": FIRST}, "weight_map.b", "none"),
        mapped("not in its shard", "check_held", {**ok, "d": FIRST}, "weight_map.d", "none"),
        Case(
            "not in the index",
            "check_indexed",
            {**sharded(), INDEX: indexed({"a": FIRST, "b": SECOND})},
            file=SECOND,
            fields={"field": "c", "offset": None},
            got="doesn't",
        ),
        Case(
            "in two shards",
            "check_indexed",
            {**sharded(), FIRST: doubled},
            file=FIRST,
            fields={"field": "b", "offset": None},
        ),
    ]


def folder_cases() -> list[Case]:
    config = {"config.json": b"{}"}
    weights = without(small(), "config.json")

    def none(name: str, files: Files, missing: tuple[str, ...], found: tuple[str, ...] = ()) -> Case:
        fields: dict[str, object] = {"missing": missing, "found": found}
        return Case(name, "refuse_weights", files, IncompleteCheckpoint, "", fields)

    def other(name: str, error: type[OstinatoError], *names: str) -> Case:
        files = {**config, "tokenizer.json": b"", **dict.fromkeys(names, b"")}
        return Case(name, "refuse_weights", files, error, "", {"files": tuple(sorted(names))})

    return [
        Case(
            "no config.json",
            "check_config",
            weights,
            IncompleteCheckpoint,
            "",
            {"missing": ("config.json",), "found": ()},
        ),
        none("an empty folder", {}, ("config.json", SINGLE, INDEX)),
        none("no weights", config, (SINGLE, INDEX)),
        none(
            "one weights file of another name",
            {**config, "adapter.safetensors": b""},
            (SINGLE, INDEX),
            ("adapter.safetensors",),
        ),
        none("shards without index", without(sharded(), INDEX), (INDEX,), (FIRST, SECOND)),
        other("pickles", PickledWeights, "pytorch_model.bin"),
        other("pickles of all kinds", PickledWeights, "a.pt", "b.pth", "c.CKPT", "d.bin", "e.bin"),
        other("a GGUF file", GgufFolder, "m.gguf"),
        other("GGUF files", GgufFolder, "a.gguf", "b.GGUF"),
        Case(
            "GGUF files and pickles",
            "refuse_weights",
            {"a.gguf": b"", "b.bin": b""},
            GgufFolder,
            "",
            {"files": ("a.gguf",)},
        ),
    ]
