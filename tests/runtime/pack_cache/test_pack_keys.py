"""The key of packed weights on disk: all that their bytes follow from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from packkit import TINY, Counting, names, start

from ostinato.device.encoded import EncodedTensor
from ostinato.formats.stamp import FileStamp, Origin
from ostinato.host import version
from ostinato.ir import PackRecipe
from ostinato.ir import encoding as enc
from ostinato.runtime.pack_cache import PackCache

STAMP = FileStamp(1, 2, 3, 4, 5, "head", True)


def described(**changes: Any) -> EncodedTensor:
    return replace(
        EncodedTensor("w", (32, 32), enc.Q8_0, np.zeros((32, 34), np.uint8), origin=Origin(STAMP, 64)),
        **changes,
    )


def key_of(tensor: EncodedTensor, *, packing: str = "cpu 1", **recipe: Any) -> str | None:
    recipes = replace(PackRecipe(("w",), "Q8_0"), **recipe)
    return PackCache(None).key_of(packing, [(recipes, [tensor])])


def other_stamp(**changes: Any) -> str | None:
    return key_of(described(origin=Origin(replace(STAMP, **changes), 64)))


OTHERS: dict[str, Callable[[], str | None]] = {
    "device": lambda: other_stamp(device=9),
    "inode": lambda: other_stamp(inode=9),
    "size": lambda: other_stamp(nbytes=9),
    "mtime": lambda: other_stamp(modified_ns=9),
    "ctime": lambda: other_stamp(changed_ns=9),
    "head": lambda: other_stamp(head="other"),
    "offset": lambda: key_of(described(origin=Origin(STAMP, 65))),
    "name": lambda: key_of(described(name="v")),
    "shape": lambda: key_of(described(shape=(16, 64))),
    "encoding": lambda: key_of(described(encoding=enc.Q4_0)),
    "recoded": lambda: key_of(described(stored=enc.F32)),
    "recoded otherwise": lambda: key_of(described(stored=enc.F16)),
    "bytes": lambda: key_of(described(raw=np.zeros((32, 35), np.uint8))),
    "row order": lambda: key_of(described(row_order=np.arange(32))),
    "another row order": lambda: key_of(described(row_order=np.arange(32)[::-1])),
    "names": lambda: key_of(described(), names=("v",)),
    "form": lambda: key_of(described(), layout="Q4_0"),
    "joined rows": lambda: key_of(described(), permutation="interleave:16"),
    "packing": lambda: key_of(described(), packing="cpu 2"),
    "two files": lambda: PackCache(None).key_of(
        "cpu 1",
        [(PackRecipe(("w",), "Q8_0"), [described(), described(origin=Origin(replace(STAMP, inode=9), 64))])],
    ),
    "twice": lambda: PackCache(None).key_of("cpu 1", [(PackRecipe(("w",), "Q8_0"), [described()] * 2)]),
}


def test_whatever_differs_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {what: other() for what, other in OTHERS.items()} | {"none": key_of(described())}
    monkeypatch.setattr(version, "__version__", "999")
    keys["version"] = key_of(described())
    assert None not in keys.values()
    assert len(set(keys.values())) == len(keys), keys


def test_equal_is_the_same_key() -> None:
    assert key_of(described()) == key_of(described(raw=np.ones((32, 34), np.uint8))), "bytes are not read"
    assert other_stamp(sure=False) is None
    assert key_of(described(origin=None)) is None


def test_another_packing_is_packed_anew(packs: PackCache, monkeypatch: pytest.MonkeyPatch) -> None:
    start(TINY, packs)
    monkeypatch.setattr(Counting, "packing", "cpu 999")
    assert not start(TINY, packs).mapped
    assert len(names(packs)) == 2


def test_what_does_not_fit_is_packed_anew(packs: PackCache, caplog: pytest.LogCaptureFixture) -> None:
    """Of other sizes, or another number: whoever changed packing forgot to say so."""
    first = start(TINY, packs)
    (key,) = names(packs)
    wrong = [np.zeros(len(data) + 64, np.uint8) for data in first.weights.values()]
    for each in (wrong, wrong[1:]):
        packs.keep(key, each)
        second = start(TINY, packs)
        assert not second.mapped
        assert second.weights == first.weights
        assert start(TINY, packs).mapped
    assert "doesn't fit" in caplog.text
