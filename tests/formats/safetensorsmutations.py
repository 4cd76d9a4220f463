"""Mutations of valid checkpoints: JSON values replaced, moved, doubled, dropped; bytes cut; files lost."""

from __future__ import annotations

import json
import random
import struct
from copy import deepcopy
from typing import Any

from safetensorsbuilder import Entry, Files, dumps, sharded, small, tensors

BASES: tuple[Files, ...] = (
    small(),
    sharded(),
    {
        "config.json": dumps({"model_type": "llama"}),
        "model.safetensors": tensors(
            *(Entry(f"t.{i}", "F32", (i, 2), 8 * i) for i in range(3)),
            *(Entry(f"s.{i}", "F4", (2 * i, 3), 3 * i) for i in range(2)),
            metadata={"format": "pt", "by": "hand"},
        ),
    },
)


class Raw(str):
    """JSON text that `json.dumps` would not write."""


RAW = (
    *(
        Raw("NaN"),
        Raw("-Infinity"),
        Raw("1e999"),
        Raw("-0"),
        Raw("00"),
        Raw("1.0"),
        Raw("9" * 100),
        Raw("9" * 101),
    ),
    *(Raw(""), Raw("'a'"), Raw("[1,]"), Raw("// a"), Raw('"\\ud800"'), Raw('"\x00"'), Raw('{"a":1,"a":2}')),
    *(Raw("[" * 30_000), Raw('{"":' * 30_000), Raw("[" * 150 + "]" * 150)),
)
PLAIN: tuple[Any, ...] = (
    *(None, True, False, "", "F32", "F16", "BF16", "F4", "I64", "U8", "Q4_0", "../a.safetensors", "x"),
    *(
        [],
        {},
        [0],
        [0, 0],
        [0, 4],
        [2, 1],
        [-1],
        [1] * 33,
        [1 << 32] * 2,
        [0, 1 << 62, 4],
        [True],
        {"a": "b"},
    ),
    *(0, 1, 2, 3, 4, 8, 16, 48, -1, 0.5, 1 << 31, 1 << 53, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64),
)


class Pairs(list[list[Any]]):
    """An object as its keys and values, in which a key can come twice."""


def tree(value: Any) -> Any:
    if isinstance(value, dict):
        return Pairs([key, tree(each)] for key, each in value.items())
    return [tree(each) for each in value] if isinstance(value, list) else value


def text(value: Any) -> str:
    if isinstance(value, Raw):
        return value
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{text(key)}:{text(each)}" for key, each in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text, value)) + "]"
    return json.dumps(value)


def places(value: Any) -> list[tuple[Any, int]]:
    """Every item of every list and every pair of every object, as (container, index)."""
    found: list[tuple[Any, int]] = []
    if isinstance(value, list):
        for index, each in enumerate(value):
            found.append((value, index))
            found += places(each[1] if isinstance(value, Pairs) else each)
    return found


def mutate_tree(rng: random.Random, root: Any) -> Any:
    """One value replaced, moved, doubled or dropped; or a key changed."""
    spots = places(root)
    if not spots or rng.random() < 0.02:
        return deepcopy(rng.choice([*RAW, *PLAIN]))
    where, index = rng.choice(spots)
    is_pair = isinstance(where, Pairs)
    other, at = rng.choice(spots)
    match rng.randrange(8):
        case 0:
            del where[index]
        case 1:
            where.insert(rng.randrange(len(where) + 1), deepcopy(where[index]))
        case 2 if is_pair:  # perhaps a name that is there already
            keys = [pair[0] for each, i in spots if isinstance(each, Pairs) for pair in [each[i]]]
            where[index] = [rng.choice([*keys, "", "\ud800", "a" * 70_000, Raw("1")]), where[index][1]]
        case 3 if isinstance(other, Pairs) == is_pair:
            where[index] = deepcopy(other[at])
        case 4 if is_pair:  # a second name for the same thing
            where.insert(index, [f"{where[index][0]}.alias", deepcopy(where[index][1])])
        case _:
            value = interesting(rng, where[index][1] if is_pair else where[index])
            where[index] = [where[index][0], value] if is_pair else value
    return root


def interesting(rng: random.Random, now: Any) -> Any:
    """A value near the present one, near a limit, or of another kind."""
    if type(now) is int and rng.random() < 0.7:
        return rng.choice([now - 1, now + 1, now * 2, -now, now + 8, now << 61, now << 32, float(now)])
    return rng.choice(RAW) if rng.random() < 0.3 else tree(deepcopy(rng.choice(PLAIN)))


def mutate_json(rng: random.Random, data: bytes) -> bytes:
    root = tree(json.loads(data))
    for _ in range(rng.choice([1, 1, 2, 3])):
        root = mutate_tree(rng, root)
    raw = bytearray(text(root).encode("utf-8", "surrogatepass"))
    if raw and rng.random() < 0.1:
        raw[rng.randrange(len(raw))] = rng.choice([0, 0x22, 0x5C, 0x7B, 0x80, 0xFF])
    return bytes(raw)


def mutate_weights(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file with its header changed, or its length, or its end."""
    (length,) = struct.unpack_from("<Q", data)
    head, body = data[8 : 8 + length], data[8 + length :]
    if rng.random() < 0.8:
        head = mutate_json(rng, head)
    length = len(head)
    match rng.randrange(16):
        case 0:
            length = rng.choice([0, 1, length - 1, length + 1, len(data), 1 << 63, (1 << 64) - 1])
        case 1:
            head, length = b" " + head, length + 1
        case 2:
            body = body[: rng.randrange(len(body) + 1)]
        case 3:
            body += bytes(rng.randint(1, 9))
    out = struct.pack("<Q", length) + head + body
    return out[: rng.choice([rng.randrange(9), rng.randrange(len(out))])] if rng.random() < 0.05 else out


def mutate(rng: random.Random) -> Files:
    """A valid folder with one file changed, and sometimes one lost or renamed."""
    files = dict(rng.choice(BASES))
    name = rng.choice(list(files))
    change = mutate_weights if name.endswith(".safetensors") else mutate_json
    files[name] = change(rng, files[name])
    if rng.random() < 0.08:
        lost = rng.choice(list(files))
        data = files.pop(lost)
        files[rng.choice([lost[:-1], "a.gguf", "a.bin", "model.safetensors"])] = data
    return files
