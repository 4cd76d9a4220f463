"""The checks that a checkpoint's files pass before anything in them is believed.

Each raises a typed error or returns None; the reader calls them through this module, one call for each
rule. `file`, `field` and `offset` only say where the checked value came from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NoReturn

from ostinato.errors.checkpoint import MissingShards
from ostinato.errors.formats import ModelFormatError
from ostinato.formats.placed import Placed

LENGTH_BYTES = 8  # the header's length stands in front of it
MAX_HEADER_BYTES = 100_000_000  # the reference implementation's limit
MAX_INDEX_BYTES = MAX_HEADER_BYTES  # the same names again
MAX_CONFIG_BYTES = 16 << 20  # real ones have kilobytes
MAX_LEVELS = 100  # real ones have four
MAX_DIGITS = 100  # of an integer: still a float, and cheap to parse
MAX_NAME_BYTES = 65_535  # as in GGUF files
MAX_DIMS = 32  # numpy 1's limit
MAX_BYTES = (1 << 63) - 1  # numpy counts bytes in int64, and skips zero dimensions when it does

_NOT_SAFETENSORS = "The file is not a safetensors file or its download was cut short; fetch it again."
_FILE_NAME = re.compile(r"[^/\\:\x00-\x1f\x7f\ud800-\udfff]{1,200}")  # no path, nothing that a terminal obeys


# JSON texts


def check_text_size(file: str, nbytes: int, limit: int) -> None:
    """A JSON file is small enough to be read whole."""
    if nbytes > limit:
        raise ModelFormatError(file, "file size", f"at most {limit} bytes", f"{nbytes} bytes")


def refuse_bytes(file: str, field: str, offset: int, byte: int) -> NoReturn:
    """A JSON text is no valid UTF-8."""
    raise ModelFormatError(file, field, "valid UTF-8", f"the byte 0x{byte:02x}", offset)


def refuse_syntax(file: str, field: str, offset: int, reason: str) -> NoReturn:
    """A text is no JSON."""
    raise ModelFormatError(file, field, "valid JSON", reason, offset)


def refuse_depth(file: str, field: str) -> NoReturn:
    """Arrays and objects are nested until the interpreter gives up."""
    raise ModelFormatError(file, field, f"at most {MAX_LEVELS} levels", "too many to parse")


def check_depth(file: str, field: str, value: Mapping[str, object]) -> None:
    """Arrays and objects are nested a few levels: the interpreters' own limits differ, and are large."""
    level: list[Iterable[object]] = [value.values()]
    for _ in range(MAX_LEVELS):
        inner = [each for values in level for each in values if isinstance(each, dict | list)]
        level = [each.values() if isinstance(each, dict) else each for each in inner]
        if not level:
            return
    raise ModelFormatError(file, field, f"at most {MAX_LEVELS} levels", "more of them")


def refuse_constant(file: str, field: str, constant: str) -> NoReturn:
    """NaN and infinities are no JSON; only Python's writer puts them into a config."""
    raise ModelFormatError(file, field, "valid JSON", constant)


def check_digits(file: str, field: str, digits: str) -> None:
    """An integer is short: parsing takes time that grows with the square of its length."""
    if len(digits) > MAX_DIGITS:
        raise ModelFormatError(
            file, field, f"integers of at most {MAX_DIGITS} digits", f"{len(digits)} digits"
        )


def check_keys_unique(file: str, field: str, pairs: Sequence[tuple[str, object]], distinct: int) -> None:
    """An object has each key once. Parsers disagree on which one counts: each would see another file."""
    if len(pairs) != distinct:
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ModelFormatError(file, field, "keys not used before", f"{twice!r} again")


def check_object(file: str, field: str, value: object) -> None:
    """A value is a JSON object."""
    if not isinstance(value, dict):
        raise ModelFormatError(file, field, "an object", kind(value))


# A safetensors file: length, header, data


def check_length_field(file: str, size: int) -> None:
    """The file is long enough to say how long its header is."""
    if size < LENGTH_BYTES:
        raise ModelFormatError(
            file, "header length", f"{LENGTH_BYTES} bytes", f"{size} bytes", 0, _NOT_SAFETENSORS
        )


def check_header_length(file: str, length: int, size: int) -> None:
    """The header is of bearable length and ends within the file."""
    most = min(MAX_HEADER_BYTES, size - LENGTH_BYTES)
    if length > most:
        raise ModelFormatError(file, "header length", f"at most {most}", f"{length}", 0, _NOT_SAFETENSORS)


def check_header_start(file: str, first: bytes) -> None:
    """The header begins with a brace, no space before it."""
    if first != b"{":
        raise ModelFormatError(file, "header", repr(b"{"), repr(first), LENGTH_BYTES, _NOT_SAFETENSORS)


def check_metadata(file: str, metadata: object) -> None:
    """`__metadata__` is an object of texts, or null."""
    texts = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    if not texts and metadata is not None:
        raise ModelFormatError(file, "__metadata__", "an object of texts", kind(metadata))


def check_name(file: str, name: str) -> None:
    """A tensor name has a name's length and is encodable: JSON can spell halves of surrogate pairs."""
    try:
        nbytes = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        nbytes = 0
    if not 1 <= nbytes <= MAX_NAME_BYTES:
        expected = f"1 to {MAX_NAME_BYTES} bytes of UTF-8"
        raise ModelFormatError(file, "tensor name", expected, kind(name))


def check_dtype(file: str, field: str, dtype: object, known: Container[str]) -> None:
    """The dtype is one of the format's: the size of another can't be known."""
    if not isinstance(dtype, str) or dtype not in known:
        raise ModelFormatError(file, field, "a dtype of the safetensors format", kind(dtype))


def check_shape(file: str, field: str, shape: object) -> None:
    """A shape is a list of a few non-negative integers."""
    if not isinstance(shape, list):
        raise ModelFormatError(file, field, "a list of sizes", kind(shape))
    if len(shape) > MAX_DIMS:
        raise ModelFormatError(file, field, f"at most {MAX_DIMS} dimensions", str(len(shape)))
    for size in shape:
        if type(size) is not int or size < 0:  # `type`, not isinstance: a bool is no size
            raise ModelFormatError(file, field, "sizes of 0 or more", kind(size))


def check_extent(file: str, field: str, shape: Sequence[int], bits: int) -> None:
    """The tensor's bytes can be counted in 63 bits, zero dimensions left out."""
    total = bits
    for size in shape:
        total *= size or 1
        if total > MAX_BYTES * 8:  # at once: a shape of long integers would make a longer product
            raise ModelFormatError(file, field, "a tensor of less than 2**63 bytes", str(tuple(shape)))


def check_whole_bytes(file: str, field: str, bits: int) -> None:
    """A tensor of 4-bit or 6-bit elements ends with a byte."""
    if bits % 8:
        raise ModelFormatError(file, field, "a size in whole bytes", f"{bits} bits")


def check_range(file: str, field: str, offsets: object) -> None:
    """`data_offsets` are two integers, begin and end, in this order."""
    if not isinstance(offsets, list) or len(offsets) != 2:
        raise ModelFormatError(file, field, "a list of two integers", kind(offsets))
    for each in offsets:
        if type(each) is not int:
            raise ModelFormatError(file, field, "a list of two integers", f"{kind(each)} in it")
    begin, end = offsets
    if not 0 <= begin <= end:
        raise ModelFormatError(file, field, "0 <= begin <= end", f"[{begin}, {end}]")


def check_inside(file: str, field: str, end: int, size: int) -> None:
    """A tensor's bytes end within the data; both count from its start."""
    if end > size:
        raise ModelFormatError(file, field, f"an end of at most {size}", str(end))


def check_length(file: str, field: str, nbytes: int, expected: int) -> None:
    """A tensor's byte range is as long as its dtype and shape make it."""
    if nbytes != expected:
        raise ModelFormatError(file, field, f"{expected} bytes, by dtype and shape", f"{nbytes} bytes")


def check_disjoint(file: str, ordered: Iterable[Placed]) -> None:
    """No two tensors share a byte. `ordered` is sorted by offset, the empty ones first."""
    for before, tensor in pairwise(ordered):
        end = before.offset + before.nbytes
        if tensor.offset < end:
            raise ModelFormatError(
                file,
                f"{tensor.name}: data_offsets",
                f"a begin at or behind {before.name}, which ends at byte {end}",
                f"byte {tensor.offset}",
                tensor.offset,
            )


def check_no_holes(file: str, ordered: Iterable[Placed], start: int, size: int) -> None:
    """Every byte from `start` to the file's end belongs to a tensor, so nothing can hide in it."""
    end = start
    for tensor in ordered:
        if tensor.offset > end:
            break
        end = max(end, tensor.offset + tensor.nbytes)
    else:
        if end == size:
            return
    raise ModelFormatError(file, "data", "bytes that all belong to a tensor", "a hole", end)


# The folder and its index


def check_file_name(folder: str, name: str) -> None:
    """A name that is asked for is a file's name and no path."""
    if not _FILE_NAME.fullmatch(name):
        raise ModelFormatError(folder, "file name", "the name of a file in this folder", kind(name))


def check_shard_name(file: str, field: str, shard: object) -> None:
    """A weight file's name is a file's name and no path: an index never points out of its folder."""
    fits = isinstance(shard, str) and shard.endswith(".safetensors") and _FILE_NAME.fullmatch(shard)
    if not fits:
        raise ModelFormatError(file, field, "the name of a .safetensors file in this folder", kind(shard))


def check_shards_exist(file: str, missing: Sequence[str]) -> None:
    """Every file that the index names lies beside it."""
    if missing:
        raise MissingShards(file, tuple(missing))


def check_indexed(file: str, names: Iterable[str], indexed: Container[str], index: str) -> None:
    """The index places all tensors of a weight file there; so no tensor comes out of two of them."""
    for name in names:
        if name not in indexed:
            raise ModelFormatError(
                file, name, f"a tensor that {index} places in this file", "one that it doesn't"
            )


def check_held(file: str, indexed: Iterable[str], held: Mapping[str, object], shard: str) -> None:
    """A weight file holds all tensors that the index places there."""
    for name in indexed:
        if name not in held:
            raise ModelFormatError(file, f"weight_map.{name}", f"a tensor of {shard}", "none of that name")


def kind(value: object) -> str:
    """A JSON value in a message: its kind, and a scalar's value. Never a nested value's repr."""
    match value:
        case None:
            return "null"
        case dict():
            return "an object"
        case list():
            return f"a list of {len(value)}"
        case str():
            return repr(value[:MAX_DIGITS])
        case bool():
            return "true" if value else "false"
    return str(value)
