"""Drawing tokens: against an oracle written the naive way, at the edges, and by its statistics."""

from __future__ import annotations

import math
import warnings
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ostinato.errors import InvalidLogits
from ostinato.generate import sampler as sampler_module
from ostinato.generate.sampler import Sampler
from ostinato.generate.settings import DEFAULTS, Sampling
from sabotage import goes_red, nothing

INF, NAN = math.inf, math.nan
EVERYTHING = Sampling(temperature=1.0, top_p=1.0, min_p=0.0, top_k=0)


def logits(*values: float) -> npt.NDArray[np.float32]:
    return np.asarray(values, np.float32)


def sampler(**changes: float) -> Sampler:
    return Sampler(Sampling(**changes).over(EVERYTHING).over(Sampling(seed=0)))  # type: ignore[arg-type]


def draws(sampler: Sampler, values: npt.NDArray[np.float32], count: int) -> list[int]:
    return [sampler.draw(values) for _ in range(count)]


# What may be drawn


def naive(values: list[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """The tokens that each setting allows by its definition over the model's own distribution."""
    top = max(values)
    weights = [math.exp(value - top) for value in values]
    shares = [weight / math.fsum(weights) for weight in weights]
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    by_top_k = set(order[: top_k or len(order)])
    by_top_p, reached = set(), 0.0
    for token in order:
        by_top_p.add(token)
        reached += shares[token]
        if reached >= top_p < 1:  # all of them sum to 1 only nearly
            break
    by_min_p = {token for token in order if weights[token] >= min_p}
    return {token for token in by_top_k & by_top_p & by_min_p if values[token] > -INF}


def clear_of_rounding(values: list[float], top_p: float, min_p: float) -> bool:
    """Neither threshold lies so close to a token that the last bit of a sum decides."""
    top = max(values)
    weights = sorted((math.exp(value - top) for value in values if value < top), reverse=True)
    shares = np.asarray([1.0] * values.count(top) + weights)
    sums = np.cumsum(shares) / math.fsum(shares)
    near_p = top_p < 1 and bool(np.any(np.abs(sums - top_p) < 1e-9))
    return not near_p and not any(min_p > 0 and abs(weight / min_p - 1) < 1e-9 for weight in weights)


lane = st.one_of(st.integers(-6, 6).map(float), st.floats(-20, 20, width=32), st.just(-INF))


@settings(max_examples=400, deadline=None)
@given(
    values=st.lists(lane, min_size=1, max_size=24),
    top_k=st.integers(0, 26),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    min_p=st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0, 1.0)),
)
def test_what_may_be_drawn_is_what_each_setting_allows(
    values: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    values = [float(np.float32(value)) for value in values]
    assume(max(values) > -INF and clear_of_rounding(values, top_p, min_p))
    tokens, kept = sampler(top_k=top_k, top_p=top_p, min_p=min_p).candidates(logits(*values))
    assert set(tokens.tolist()) == naive(values, top_k, top_p, min_p)
    assert kept.tolist() == [values[token] for token in tokens]
    assert sorted(zip(-kept, tokens, strict=True)) == list(zip(-kept, tokens, strict=True))


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(lane, min_size=1, max_size=12),
    temperature=st.sampled_from([1e-320, 1e-6, 0.5, 1.0, 1e6, 1e308]),
    seed=st.integers(0, 2**64 - 1),
)
def test_only_candidates_are_drawn(values: list[float], temperature: float, seed: int) -> None:
    assume(max(values) > -INF)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = Sampler(Sampling(temperature=temperature, top_p=1.0, min_p=0.0, seed=seed))
        drawn = draws(one, logits(*values), 8)
    assert all(values[token] > -INF for token in drawn)


def test_top_p_takes_the_token_that_reaches_it() -> None:
    values = logits(*np.log([0.5, 0.25, 0.125, 0.125]))
    for top_p, count in ((0.01, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (1.0, 4)):
        assert len(sampler(top_p=top_p).candidates(values)[0]) == count, top_p


def test_min_p_is_a_share_of_the_likeliest() -> None:
    values = logits(*np.log([0.5, 0.26, 0.13, 0.11]))
    for min_p, count in ((0.0, 4), (0.21, 4), (0.25, 3), (0.5, 2), (0.6, 1), (1.0, 1)):
        assert len(sampler(min_p=min_p).candidates(values)[0]) == count, min_p


def test_the_cuts_are_made_before_the_temperature() -> None:
    """However hot, the tail stays cut off."""
    values = logits(*np.log([0.6, 0.3, 0.1]))
    assert set(draws(sampler(temperature=1e6, top_p=0.85), values, 200)) == {0, 1}


def test_the_defaults_cut_the_tail() -> None:
    assert (DEFAULTS.temperature, DEFAULTS.top_p, DEFAULTS.min_p, DEFAULTS.top_k) == (0.8, 0.95, 0.05, 0)


# Ties, extremes, what is no number


@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {"temperature": 1e-6, "top_k": 1}, {"top_k": 1}])
def test_among_equals_the_lowest_id_is_the_likeliest(changes: dict[str, float]) -> None:
    assert set(draws(sampler(**changes), logits(1, 3, 2, 3, 3), 20)) == {1}


def test_a_tiny_temperature_is_greedy_and_a_huge_one_uniform() -> None:
    values = logits(1, 3, 2.999, -4)
    assert set(draws(sampler(temperature=1e-6), values, 50)) == {1}
    counts = Counter(draws(sampler(temperature=1e6), values, 4000))
    assert all(abs(counts[token] - 1000) < 150 for token in range(4))


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0, 1e6])
def test_a_lone_token_is_always_drawn(temperature: float) -> None:
    assert set(draws(sampler(temperature=temperature), logits(7.0), 5)) == {0}
    assert set(draws(sampler(temperature=temperature), logits(-INF, -INF, -3e38, -INF), 5)) == {2}


class Scripted:
    """Stands in for numpy's Generator."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def test_each_token_owns_a_half_open_interval() -> None:
    one = sampler()
    for number, token in ((0.0, 0), (0.4999, 0), (0.5, 1), (0.75, 1)):
        one._random = Scripted(number)  # type: ignore[assignment]
        assert one.draw(logits(0, 0)) == token, number


@pytest.mark.parametrize("lowest", [-INF, -800.0])
def test_the_last_random_number_draws_no_token_without_weight(lowest: float) -> None:
    """`(1 - 2⁻⁵³) · sum` can round up to the sum itself; 1.0 stands for that."""
    values = logits(0, -0.6931472, -0.6931472, lowest, lowest)
    one = sampler(min_p=0.0)
    for number, expected in ((0.0, {0}), (math.nextafter(1, 0), {2}), (1.0, {2})):
        one._random = Scripted(number)  # type: ignore[assignment]
        assert {one.draw(values)} == expected


BROKEN = [
    ((1, NAN, 2), 1),
    ((NAN, NAN), 0),
    ((1, 2, INF), 2),
    ((INF, INF), 0),
    ((-INF, -INF), 0),
    ((1, 2, -INF, NAN), 3),
]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("values", "token"), BROKEN)
def test_logits_that_are_no_numbers_are_an_error(
    values: tuple[float, ...], token: int, temperature: float
) -> None:
    with pytest.raises(InvalidLogits) as raised:
        sampler(temperature=temperature).draw(logits(*values))
    assert raised.value.token == token
    assert f"token {token}" in str(raised.value)
    assert isinstance(raised.value, ArithmeticError)


def test_sabotage_check_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        test_logits_that_are_no_numbers_are_an_error((1, NAN, 2), 1, 0.0)

    goes_red(monkeypatch, sampler_module, "check_logits", nothing, check)


# Randomness


def chi_square(counts: Counter[int], shares: npt.NDArray[np.float64]) -> float:
    total = counts.total()
    return sum((counts[token] - total * share) ** 2 / (total * share) for token, share in enumerate(shares))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_their_probability_says(temperature: float) -> None:
    values = logits(0.3, -1.0, 2.0, 1.1, -0.4, 0.0, 1.7, -2.0)
    shares = np.exp(values.astype(np.float64) / temperature)
    shares /= shares.sum()
    counts = Counter(draws(sampler(temperature=temperature), values, 20_000))
    assert chi_square(counts, shares) < 24.32  # 7 degrees of freedom, p = 0.001
    # and the test can tell: another temperature's shares are refused
    wrong = np.exp(values.astype(np.float64) / (temperature * 1.3))
    assert chi_square(counts, wrong / wrong.sum()) > 24.32


def test_a_seed_names_a_stream() -> None:
    values = logits(*np.zeros(50))
    first, again, other = (draws(sampler(seed=seed), values, 30) for seed in (5, 5, 6))
    assert first == again
    assert first != other
    assert len(set(first)) > 10
    assert draws(sampler(seed=2**64 - 1), values, 3) == draws(sampler(seed=2**64 - 1), values, 3)


def test_seeds_stay_what_they_drew() -> None:
    """A pinned stream: a change here changes everybody's reproducible answers."""
    assert draws(sampler(seed=1), logits(*np.zeros(100)), 8) == [51, 95, 14, 94, 31, 42, 82, 40]


def test_samplers_share_nothing() -> None:
    values = logits(*np.zeros(50))
    alone = draws(sampler(seed=5), values, 10)
    one, other = sampler(seed=5), sampler(seed=9)
    woven = []
    for _ in range(10):
        woven.append(one.draw(values))
        other.draw(values)
    assert woven == alone


def test_a_seed_that_was_not_given_is_random_and_told() -> None:
    seeds = {Sampler(Sampling()).seed for _ in range(8)}
    assert len(seeds) == 8
    told = Sampler(Sampling())
    values = logits(*np.zeros(1000))
    assert draws(Sampler(Sampling(seed=told.seed)), values, 20) == draws(told, values, 20)


def test_drawing_leaves_the_logits_alone() -> None:
    values = logits(1, 2, 3)
    values.flags.writeable = False
    sampler().draw(values)
