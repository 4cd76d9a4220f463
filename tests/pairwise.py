"""Most of what a product of parameters finds, at a fraction of its cost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def name_of(value: Any) -> str:
    return str(getattr(value, "name", value))


def pairwise(names: str, *axes: Sequence[Any]) -> pytest.MarkDecorator:
    """`parametrize` over the product of `axes`. By default every value of an axis meets every value of each
    other axis once or more; the rest of the product has the mark `slow`.

    What runs is a Latin square: the positions of a case's values add up to a multiple of the shortest axis.
    """
    step = min(len(axis) for axis in axes)
    assert len(axes) > 2, "two axes leave nothing out"
    cases = itertools.product(*(enumerate(axis) for axis in axes))
    return pytest.mark.parametrize(
        names.split(),
        [
            pytest.param(
                *(value for _, value in case),
                marks=[pytest.mark.slow] if sum(at for at, _ in case) % step else [],
                id="-".join(name_of(value) for _, value in case),
            )
            for case in cases
        ],
    )
