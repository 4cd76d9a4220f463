"""What a generation did and how long it took."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ostinato.decode.slot import SlotStatistics

FinishReason = Literal["stop", "length", "context", "interrupted"]


@dataclass
class Receipt:
    """Filled while tokens come. Seconds; `tokens` counts what was generated, an end token not included.

    finish_reason: "stop" the model ended, "length" max_tokens reached, "context" the cache is full,
    "interrupted" the caller stopped. `reused_tokens` of the prompt were in the cache already. `steps` counts
    forward steps by how they were run ("captured", "held", "replanned"); `plan_notes` says why plainer ways
    were taken.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    tokens: int = 0
    seconds_to_first: float = 0.0
    decode_seconds: float = 0.0
    decode_steps: int = 0
    finish_reason: FinishReason = "interrupted"
    seed: int | None = None
    steps: dict[str, int] = field(default_factory=dict)
    plan_notes: list[str] = field(default_factory=list)

    def count_steps(self, before: SlotStatistics, now: SlotStatistics) -> None:
        """Take over what a leased slot has done since `before`."""
        for how in ("captured", "held", "replanned"):
            if count := getattr(now, how) - getattr(before, how):
                self.steps[how] = count
        dropped = now.drops[len(before.drops) :]
        refused = [] if now.capture_refusal is None else [f"not captured: {now.capture_refusal}"]
        self.plan_notes = [*(f"plan dropped: {reason}" for reason in dropped), *refused]

    @property
    def tokens_per_second(self) -> float:
        """The decode rate: steps after the first token by their time; 0 when there was none."""
        return self.decode_steps / self.decode_seconds if self.decode_seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "tokens_per_second": self.tokens_per_second}
