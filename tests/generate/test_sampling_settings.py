"""What was asked for, what the model suggests, the defaults; and what is out of range."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from ostinato.errors import InvalidSetting
from ostinato.generate.sampler import Sampler
from ostinato.generate.settings import DEFAULTS, Sampling, check_count, suggested

GOOD: list[tuple[str, Any]] = [
    ("temperature", 0), ("temperature", 0.0), ("temperature", 1e6), ("temperature", np.float64(0.5)),
    ("top_p", 1), ("top_p", 1e-9), ("min_p", 0), ("min_p", 1.0), ("top_k", 0), ("top_k", np.int64(40)),
    ("temperature", np.float32(0.5)), ("temperature", np.float16(0.5)), ("temperature", np.int64(1)),
    ("temperature", Fraction(1, 2)), ("top_p", np.float32(1.0)), ("seed", np.uint64(2**64 - 1)),
    ("seed", 0), ("seed", 2**64 - 1),
]  # fmt: skip
BAD: list[tuple[str, Any]] = [
    ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("temperature", 10**400),
    ("temperature", np.float32("inf")), ("temperature", np.float32("nan")), ("temperature", np.bool_(True)),
    ("temperature", 1j), ("temperature", np.ones(1)), ("top_p", np.float32(1.0000001)), ("min_p", [0.1]),
    ("temperature", "1"), ("temperature", True), ("top_p", 0), ("top_p", -0.0), ("top_p", 1.0001),
    ("top_p", math.nan), ("min_p", -1e-9), ("min_p", 1.1), ("top_k", -1), ("top_k", 2.5), ("top_k", True),
    ("seed", -1), ("seed", 2**64), ("seed", 10**400), ("seed", 1.0), ("seed", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), GOOD)
def test_values_in_range_are_taken(field: str, value: Any) -> None:
    one = Sampler(Sampling(**{"seed": 1, field: value}))
    assert getattr(one, field) == value
    assert type(getattr(one, field)) is (int if field in ("top_k", "seed") else float)
    assert one.draw(np.zeros(100, np.float32)) < 100


@pytest.mark.parametrize(("field", "value"), BAD)
def test_values_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidSetting) as raised:
        Sampling(**{field: value})
    error = raised.value
    assert error.field == field
    assert repr(value) in str(error)
    assert error.expected in str(error)
    assert isinstance(error, ValueError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_counts_say_their_range() -> None:
    check_count("n", None)
    check_count("n", 3)
    for bad in (0, -1, 1.0, True, "3"):
        with pytest.raises(InvalidSetting, match="expected an integer of at least 1"):
            check_count("n", bad)
    with pytest.raises(InvalidSetting, match="expected an integer from 0 to 7"):
        check_count("n", 8, low=0, high=7)


def test_explicit_beats_suggested_beats_default() -> None:
    model = suggested({"general.sampling.temp": 0.2, "general.sampling.min_p": 0.1})
    one = Sampler(Sampling(temperature=1.5).over(model))
    assert (one.temperature, one.min_p, one.top_p, one.top_k) == (1.5, 0.1, DEFAULTS.top_p, DEFAULTS.top_k)


def test_an_explicit_zero_is_no_missing_value() -> None:
    keys = {"temp": 0.7, "min_p": 0.1, "top_k": 40}
    model = suggested({f"general.sampling.{key}": value for key, value in keys.items()})
    one = Sampler(Sampling(temperature=0.0, min_p=0.0, top_k=0, seed=0).over(model))
    assert (one.temperature, one.min_p, one.top_k, one.seed) == (0.0, 0.0, 0, 0)


@pytest.mark.parametrize("value", [math.nan, -1.0, "hot", [1], True, None, {}, 1e999])
def test_a_suggestion_out_of_range_counts_as_none(value: Any) -> None:
    found = suggested({"general.sampling.temp": value, "general.sampling.top_p": 0.5})
    assert found == Sampling(top_p=0.5)


def test_a_model_never_suggests_a_seed() -> None:
    assert suggested({"general.sampling.seed": 1}).seed is None
