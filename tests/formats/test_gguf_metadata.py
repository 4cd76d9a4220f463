"""The typed getters of a GGUF file's metadata."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors.formats import ModelFormatError
from ostinato.formats.gguf import Metadata

VALUES = Metadata(
    {"s": "x", "i": 7, "f": 1.5, "b": True, "ss": ["a"], "ns": np.array([1, 2], np.int32)}, "tiny.gguf"
)
GETTERS = {
    "text": {"s"},
    "integer": {"i"},
    "number": {"i", "f"},
    "flag": {"b"},
    "texts": {"ss"},
    "numbers": {"ns"},
}


@pytest.mark.parametrize("getter", GETTERS)
@pytest.mark.parametrize("key", list(VALUES))
def test_a_getter_takes_its_type_and_no_other(getter: str, key: str) -> None:
    get = getattr(VALUES, getter)
    if key in GETTERS[getter]:
        np.testing.assert_array_equal(get(key), VALUES[key])
        np.testing.assert_array_equal(get(key, default=None), VALUES[key])
        return
    for arguments in ((key,), (key, None)):
        with pytest.raises(ModelFormatError) as caught:
            get(*arguments)
        assert (caught.value.file, caught.value.field, caught.value.offset) == ("tiny.gguf", key, None)


@pytest.mark.parametrize("getter", GETTERS)
def test_a_missing_key(getter: str) -> None:
    get = getattr(VALUES, getter)
    with pytest.raises(ModelFormatError, match="no such key") as caught:
        get("absent")
    assert caught.value.field == "absent"
    assert get("absent", default=None) is None
    marker = object()
    assert get("absent", marker) is marker


def test_a_default_is_for_a_missing_key_even_if_it_is_the_value() -> None:
    with pytest.raises(ModelFormatError):
        VALUES.text("i", VALUES["i"])


def test_number_is_a_float_whatever_the_file_has() -> None:
    assert type(VALUES.number("i")) is float


def test_metadata_is_a_mapping() -> None:
    assert list(VALUES) == ["s", "i", "f", "b", "ss", "ns"]
    assert len(VALUES) == 6
    assert "s" in VALUES
    assert VALUES.get("absent") is None
    with pytest.raises(KeyError):
        VALUES["absent"]
    assert "tiny.gguf" in repr(VALUES)
