"""Sampling settings: what was asked for, else what the model suggests, else the defaults."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from types import UnionType
from typing import Any

from ostinato.errors.generate import InvalidSetting


def check_number(field: str, value: Any, expected: str, *, low: float, high: float) -> None:
    """Raises InvalidSetting unless `value` is None or a real number from `low` to `high`."""
    if value is not None and not (_is(value, Real) and low <= _float(value) <= high):  # NaN is in no range
        raise InvalidSetting(field, expected, repr(value))


def check_count(field: str, value: Any, *, low: int = 1, high: int | None = None) -> None:
    """Raises InvalidSetting unless `value` is None or an integer from `low` to `high`."""
    if value is not None and not (_is(value, Integral) and low <= value and (high is None or value <= high)):
        expected = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
        raise InvalidSetting(field, expected, repr(value))


def check_choice(field: str, value: Any, choices: Collection[str]) -> None:
    """Raises InvalidSetting unless `value` is None or one of `choices`."""
    if value is not None and not (isinstance(value, str) and value in choices):
        raise InvalidSetting(field, " or ".join(choices), repr(value))


def check_kind(field: str, value: Any, kind: type | UnionType, expected: str) -> None:
    """Raises InvalidSetting, which names the type and not what may be private, unless it's a `kind`."""
    if not isinstance(value, kind):
        raise InvalidSetting(field, expected, f"a {type(value).__name__}")


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _float(value: Any) -> float:
    """As a Python float: a narrower one would round the limits that it is compared with."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn; None leaves a setting to the model or the defaults.

    temperature: 0 takes the most likely token, 1 the model's own distribution. top_p (Holtzman et al. 2019,
    arXiv:1904.09751): the smallest set of likeliest tokens whose probabilities reach it. min_p (Nguyen et
    al. 2024, arXiv:2407.01082): at least this share of the likeliest token's probability. top_k: the k
    likeliest, 0 is no limit. seed: the same seed draws the same tokens.

    Raises InvalidSetting.
    """

    temperature: float | None = None
    top_p: float | None = None
    min_p: float | None = None
    top_k: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        largest, smallest = sys.float_info.max, sys.float_info.min
        check_number("temperature", self.temperature, "a number of at least 0", low=0.0, high=largest)
        check_number("top_p", self.top_p, "a number above 0, up to 1", low=smallest, high=1.0)
        check_number("min_p", self.min_p, "a number from 0 to 1", low=0.0, high=1.0)
        check_count("top_k", self.top_k, low=0)
        check_count("seed", self.seed, low=0, high=2**64 - 1)
        for field in fields(self):  # numpy's numbers come as Python's
            value = getattr(self, field.name)
            if value is not None:
                kind = int if field.name in ("top_k", "seed") else float
                object.__setattr__(self, field.name, kind(value))

    def over(self, weaker: Sampling) -> Sampling:
        """These settings, completed by `weaker` ones."""
        missing = {f.name: getattr(weaker, f.name) for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **missing)


def check_sampling(value: Any) -> None:
    """Raises InvalidSetting unless `value` is None or a Sampling."""
    check_kind("sampling", value, Sampling | None, "a Sampling")


DEFAULTS = Sampling(temperature=0.8, top_p=0.95, min_p=0.05, top_k=0)

GGUF_SAMPLING = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "top_k": "general.sampling.top_k",
}
"""Where a GGUF file's metadata holds its suggestions."""
GENERATION_CONFIG = {name: name for name in GGUF_SAMPLING}
"""Where Hugging Face's generation_config.json holds them."""


def suggested(metadata: Mapping[str, Any], keys: Mapping[str, str] = GGUF_SAMPLING) -> Sampling:
    """What a model's files suggest; a suggestion out of range counts as none."""
    found: dict[str, Any] = {}
    for field, key in keys.items():
        value = metadata.get(key)
        try:
            Sampling(**{field: value})
        except InvalidSetting:
            continue
        found[field] = value
    return Sampling(**found)
