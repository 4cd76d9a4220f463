"""What a generation did and how long it took."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

FinishReason = Literal["stop", "length", "context", "interrupted"]


@dataclass
class Receipt:
    """Filled while tokens come. Seconds; `tokens` counts what was generated, an end token not included.

    finish_reason: "stop" the model ended, "length" max_tokens reached, "context" the cache is full,
    "interrupted" the caller stopped. `reused_tokens` of the prompt were in the cache already.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    tokens: int = 0
    seconds_to_first: float = 0.0
    decode_seconds: float = 0.0
    decode_steps: int = 0
    finish_reason: FinishReason = "interrupted"
    seed: int | None = None

    @property
    def tokens_per_second(self) -> float:
        """The decode rate: steps after the first token by their time; 0 when there was none."""
        return self.decode_steps / self.decode_seconds if self.decode_seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "tokens_per_second": self.tokens_per_second}
