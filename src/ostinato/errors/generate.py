"""What generation refuses."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors.base import OstinatoError


@dataclass(eq=False, repr=False)
class InvalidSetting(OstinatoError, ValueError):
    """A sampling or generation setting is out of its range."""

    field: str
    expected: str
    got: str

    def message(self) -> str:
        return f"{self.field} is {self.got}, expected {self.expected}"


@dataclass(eq=False, repr=False)
class InvalidLogits(OstinatoError, ArithmeticError):
    """The model yielded logits that are not numbers: weights or a kernel are damaged."""

    token: int

    def message(self) -> str:
        return f"the model's logits are not numbers (first at token {self.token})"

    @property
    def remedy(self) -> str:
        return (
            "Check the model file; with another --device the same prompt tells whether a kernel is at fault."
        )


@dataclass(eq=False, repr=False)
class PromptTooLong(OstinatoError, ValueError):
    """The prompt has more tokens than the context holds."""

    tokens: int
    context: int

    def message(self) -> str:
        return f"the prompt has {self.tokens} tokens, the context holds {self.context}"

    @property
    def remedy(self) -> str:
        return f"Shorten the prompt, or use a context of more than {self.tokens} (--context)."


@dataclass(eq=False, repr=False)
class EmptyPrompt(OstinatoError, ValueError):
    """There is no token to start from."""

    def message(self) -> str:
        return "the prompt is empty"

    @property
    def remedy(self) -> str:
        return "Give some text; this model adds no beginning-of-text token of its own."


@dataclass(eq=False, repr=False)
class CacheChanged(OstinatoError, RuntimeError):
    """Something else ran over a generation's KV cache, or emptied it, between two of its steps.

    `expected` is how the generation left it, `got` how it is: (allocation, length in positions).
    """

    expected: tuple[int, int]
    got: tuple[int, int]

    def message(self) -> str:
        if self.expected[0] != self.got[0]:
            return "the KV cache of this generation was cleared or given other slabs; nothing was run"
        lengths = f"it holds {self.got[1]} positions, this generation left {self.expected[1]}"
        return f"the KV cache of this generation was changed: {lengths}; nothing was run"

    @property
    def remedy(self) -> str:
        return "Finish or close one generation before the next uses its cache, or give each its own."


@dataclass(eq=False, repr=False)
class ConversationBusy(OstinatoError, RuntimeError):
    """A conversation was used while another thread computes its next piece."""

    def message(self) -> str:
        return "the conversation is computing its next piece in another thread"

    @property
    def remedy(self) -> str:
        return "Ask when that piece is there, or begin a conversation for each thread (LLM.conversation)."


@dataclass(eq=False, repr=False)
class GenerationBusy(OstinatoError, RuntimeError):
    """A generation was used while another thread computes its next piece."""

    def message(self) -> str:
        return "the generation is computing its next piece in another thread"

    @property
    def remedy(self) -> str:
        return "Take its pieces in one thread, or begin a generation for each (LLM.stream)."


@dataclass(eq=False, repr=False)
class NoChatTemplate(OstinatoError, ValueError):
    """A conversation was asked of a model that has no chat template."""

    model: str

    def message(self) -> str:
        return f"{self.model} has no chat template"

    @property
    def remedy(self) -> str:
        return "Use a chat model, or give the whole prompt as text (--raw)."


@dataclass(eq=False, repr=False)
class StartFailed(OstinatoError, RuntimeError):
    """A process that was started to be timed ended with exit code `code`."""

    code: int
    said: str

    def message(self) -> str:
        return f"a start of ostinato ended with exit code {self.code}: {self.said}"
