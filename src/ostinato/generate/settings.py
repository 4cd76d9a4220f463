"""Sampling settings: what was asked for, else what the model suggests, else the defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ostinato.errors.generate import InvalidSetting


def _check(
    field: str, value: float | None, low: float, high: float, expected: str, *, above: bool = False
) -> None:
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not low <= value <= high or (above and value == low):
        raise InvalidSetting(field, expected, repr(value))


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn; None leaves a setting to the model or the defaults.

    temperature: 0 takes the most likely token, 1 the model's own distribution. top_p (Holtzman et al. 2019,
    arXiv:1904.09751): the smallest set of likeliest tokens whose probabilities reach it. min_p (Nguyen et
    al. 2024, arXiv:2407.01082): at least this share of the likeliest token's probability. top_k: the k
    likeliest, 0 is no limit. seed: the same seed draws the same tokens.
    """

    temperature: float | None = None
    top_p: float | None = None
    min_p: float | None = None
    top_k: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, math.inf, "a number of at least 0")
        _check("top_p", self.top_p, 0.0, 1.0, "a number above 0, up to 1", above=True)
        _check("min_p", self.min_p, 0.0, 1.0, "a number from 0 to 1")
        _check("top_k", self.top_k, 0, math.inf, "an integer of at least 0")
        _check("seed", self.seed, 0, 2**64 - 1, "an integer from 0 to 2⁶⁴ - 1")

    def over(self, weaker: Sampling) -> Sampling:
        """These settings, completed by `weaker` ones."""
        missing = {f.name: getattr(weaker, f.name) for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **missing)


DEFAULTS = Sampling(temperature=0.8, top_p=0.95, min_p=0.05, top_k=0)

_METADATA = {"temperature": "temp", "top_p": "top_p", "min_p": "min_p", "top_k": "top_k"}


def suggested(metadata: Mapping[str, Any]) -> Sampling:
    """What a GGUF file suggests in `general.sampling.*`; a suggestion out of range counts as none."""
    found: dict[str, Any] = {}
    for field, key in _METADATA.items():
        value = metadata.get(f"general.sampling.{key}")
        try:
            Sampling(**{field: value})
        except (InvalidSetting, TypeError):
            continue
        found[field] = value
    return Sampling(**found)
