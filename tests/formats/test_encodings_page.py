"""The table of `docs/encodings.md` is what the code says; a failure shows the table to put there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ostinato.devices.cpu.weights import PACKED
from ostinato.errors import NoEncoder, UnsupportedEncoding
from ostinato.formats.encodings import CODECS, ENCODERS
from ostinato.ir import encoding as e

PAGE = Path(__file__).parents[2] / "docs" / "encodings.md"
HEAD = """\
| encoding | bits per weight | block | bytes | decode | encode | on `cpu` | source |
| --- | ---: | ---: | ---: | --- | --- | ---: | --- |
"""


def source(encoding: e.Encoding) -> str:
    """Where the codec's docstring says that its layout is from."""
    if encoding not in CODECS:
        return ""
    kind = type(CODECS[encoding])
    text = " ".join(
        (kind.__doc__ if encoding.is_plain else sys.modules[kind.__module__].__doc__ or "").split()
    )
    found = re.search(r"ggml's (`block_\w+`)|IEEE 754 \w+|upper 16 bits of a float32", text)
    assert found, f"the docstring of {encoding}'s codec names no source"
    return found[1] or found[0]


def table() -> str:
    # BOOL is ostinato's own, for masks; no file has it.
    known = [each for each in vars(e).values() if isinstance(each, e.Encoding) and each != e.BOOL]
    rows = [
        (
            each.name,
            f"{each.bits:g}",
            each.block,
            each.block_bytes,
            "yes" if each in CODECS else "no",
            "yes" if each in ENCODERS else "no",
            f"{PACKED[each].stored.bits:.4g}" if each in PACKED else "",
            source(each),
        )
        for each in known
    ]
    return HEAD + "".join("| " + " | ".join(map(str, row)).rstrip() + " |\n" for row in rows)


def test_the_table_is_up_to_date() -> None:
    wanted = table()
    assert wanted in PAGE.read_text(encoding="utf-8"), (
        f"docs/encodings.md should have this table:\n\n{wanted}"
    )


def named(remedy: str) -> list[str]:
    """The encodings that a remedy lists, `A to B` being all from A to B in the table's order."""
    order = [each.name for each in vars(e).values() if isinstance(each, e.Encoding)]
    found = []
    for first, last in re.findall(r"\b([A-Z]+\d\w*)(?: to ([A-Z]+\d\w*))?", remedy):
        found += order[order.index(first) : order.index(last or first) + 1]
    return found


def test_the_errors_name_what_can_be_read_and_written() -> None:
    table = [each.name for each in vars(e).values() if isinstance(each, e.Encoding)]
    for error, codecs in (
        (UnsupportedEncoding("m", "t", "F64"), CODECS),
        (NoEncoder("m", "t", "F64"), ENCODERS),
    ):
        names = named(error.remedy)
        assert names == [name for name in table if name in {each.name for each in codecs}]


def test_each_block_format_states_its_bytes_and_bits() -> None:
    for encoding, each in CODECS.items():
        if encoding.is_plain:
            continue
        kind = type(each)
        layout = " ".join((sys.modules[kind.__module__].__doc__ or "").split())
        assert f" {encoding.block_bytes} bytes: " in layout, encoding
        assert (kind.__doc__ or "").startswith(f"{encoding.bits:g} bits a weight"), encoding
