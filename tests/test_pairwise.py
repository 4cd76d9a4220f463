"""Which cases of a product run by default."""

from __future__ import annotations

import itertools

import pytest

from pairwise import pairwise

AXES = {
    "two": ("ab", "cdefg", "hi"),
    "three": ("abc", "def", "ghi"),
    "of different lengths": ("abcd", "efg", "hijkl"),
    "four": ("ab", "cd", "efg", "hi"),
}


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_every_two_values_of_two_axes_meet_by_default(axes: tuple[str, ...]) -> None:
    names, cases = pairwise(" ".join(f"x{at}" for at in range(len(axes))), *axes).args
    assert names == [f"x{at}" for at in range(len(axes))]
    assert [case.values for case in cases] == list(itertools.product(*axes)), "none is gone"
    default = [case.values for case in cases if not case.marks]
    assert len(default) <= len(cases) / 2 + 1
    for one, other in itertools.combinations(range(len(axes)), 2):
        met = {(case[one], case[other]) for case in default}
        assert met == set(itertools.product(axes[one], axes[other]))
