"""Drawing the next token."""

from __future__ import annotations

import math
import secrets

import numpy as np
import numpy.typing as npt

from ostinato.errors.generate import InvalidLogits
from ostinato.generate.settings import DEFAULTS, Sampling


class Sampler:
    """Draws tokens for one request; its random state is its own and dies with it.

    top_k, top_p and min_p cut the model's own distribution; temperature then reshapes what is left, so a high
    temperature doesn't let the tail back in.
    """

    def __init__(self, settings: Sampling) -> None:
        settings = settings.over(DEFAULTS)
        assert settings.temperature is not None
        assert settings.top_p is not None
        assert settings.min_p is not None
        assert settings.top_k is not None
        self.temperature = settings.temperature
        self.top_p = settings.top_p
        self.min_p = settings.min_p
        self.top_k = settings.top_k
        self.seed = settings.seed if settings.seed is not None else secrets.randbits(32)
        self._random = np.random.Generator(np.random.PCG64(self.seed))

    @property
    def greedy(self) -> bool:
        """Takes the likeliest token, the lowest id among equals, and draws nothing."""
        return self.temperature == 0.0

    def draw(self, logits: npt.NDArray[np.float32]) -> int:
        """The next token for logits `[vocab]`; raises InvalidLogits."""
        check_logits(logits)
        if self.greedy:
            return int(logits.argmax())
        tokens, kept = self.candidates(logits)
        # Relative to the likeliest, so that a small temperature can't underflow all of them.
        with np.errstate(over="ignore"):
            weights = np.exp((kept - kept[0]) / self.temperature)
        cumulative = np.cumsum(weights)
        at = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        # The product can round up to the whole sum, and the tokens behind that have no weight.
        return int(tokens[min(at, np.searchsorted(cumulative, cumulative[-1]))])

    def candidates(
        self, logits: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """Tokens that may be drawn, likeliest first, with their logits."""
        scores = logits.astype(np.float64)
        top = scores.max()
        # min_p first: it needs no order, and what it keeps are the likeliest, so what top_p sums stays exact.
        floor = top + math.log(self.min_p) if self.min_p > 0 else np.finfo(np.float64).min
        tokens = np.flatnonzero(scores >= floor)  # -inf is below every floor
        tokens = tokens[np.argsort(-scores[tokens], kind="stable")]
        if self.top_k:
            tokens = tokens[: self.top_k]
        if self.top_p < 1.0:
            total = np.exp(scores - top).sum()
            cumulative = np.cumsum(np.exp(scores[tokens] - top)) / total
            tokens = tokens[: int(np.searchsorted(cumulative, self.top_p)) + 1]
        return tokens, scores[tokens]


def check_logits(logits: npt.NDArray[np.float32]) -> None:
    """Raises InvalidLogits where a logit is NaN or +inf, or all are -inf."""
    bad = np.isnan(logits) | np.isposinf(logits)
    if bad.any() or not np.isfinite(logits).any():
        raise InvalidLogits(int(bad.argmax()))
