"""Errors of tokenising and of chat templates."""

from __future__ import annotations

import dataclasses

from ostinato.errors.base import OstinatoError

_CLIP = 200  # a hostile file holds texts of any length; a message shows this many characters of one


def _clip(text: str) -> str:
    return text if len(text) <= _CLIP else text[:_CLIP] + "…"


@dataclasses.dataclass(eq=False, repr=False)
class TokenizerFormatError(OstinatoError, ValueError):
    """A tokenizer's description is missing, malformed or contradicts itself.

    `key` is a metadata key of a GGUF file where `file` is empty, otherwise the place in that file of a
    Hugging Face model folder.
    """

    key: str
    expected: str
    got: str
    file: str = ""

    def message(self) -> str:
        place = f"{self.file}: {_clip(self.key)!r}" if self.file else f"metadata key {self.key!r}"
        return f"{place}: expected {self.expected}, got {_clip(self.got)}"

    @property
    def remedy(self) -> str:
        if self.file:
            return "Fetch the model's files again, or take another copy of the model."
        return "Convert the model again with a current converter, or take another conversion of it."


@dataclasses.dataclass(eq=False, repr=False)
class TokenizerFilesMissing(OstinatoError, FileNotFoundError):
    """A model folder holds none of the files that a tokenizer can be made from."""

    folder: str
    wanted: tuple[str, ...]

    def message(self) -> str:
        return f"{self.folder}: no tokenizer; looked for {' and '.join(self.wanted)}"

    @property
    def remedy(self) -> str:
        return (
            "Put the model's tokenizer.json beside its weights. transformers writes one: "
            "AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)."
        )


@dataclasses.dataclass(eq=False, repr=False)
class UnsupportedTokenizer(OstinatoError, ValueError):
    """The model's tokenizer is of a kind, or has a part, that is not implemented; `kind` says which."""

    kind: str
    known: tuple[str, ...]

    def message(self) -> str:
        return f"the tokenizer kind {_clip(self.kind)!r} is not supported; known: {', '.join(self.known)}"

    @property
    def remedy(self) -> str:
        return f"Take a model whose tokenizer is one of: {', '.join(self.known)}."


@dataclasses.dataclass(eq=False, repr=False)
class UnsupportedPreTokenizer(OstinatoError, ValueError):
    """`tokenizer.ggml.pre` names a way of cutting text into words that is not in the table."""

    pre: str
    known: tuple[str, ...]

    def message(self) -> str:
        return f"the pre-tokenizer {_clip(self.pre)!r} is not known; known: {', '.join(self.known)}"

    @property
    def remedy(self) -> str:
        return (
            "Guessing would silently tokenise text in a way the model never saw. If the model is known to "
            "cut words like one of the known pre-tokenizers, write that name into its 'tokenizer.ggml.pre'."
        )


@dataclasses.dataclass(eq=False, repr=False)
class TokenizerNotConvertible(OstinatoError, ValueError):
    """A tokenizer that GGUF metadata can't describe without changing what it does."""

    part: str
    reason: str

    def message(self) -> str:
        return f"the tokenizer's {self.part} can't be written as GGUF metadata: {_clip(self.reason)}"

    @property
    def remedy(self) -> str:
        return "Run the model from its own folder; a guess would silently tokenise text differently."


@dataclasses.dataclass(eq=False, repr=False)
class TextNotEncodable(OstinatoError, ValueError):
    """The tokenizer's own rules gave up on a text of that many characters; `detail` is what they said."""

    length: int
    detail: str

    def message(self) -> str:
        return f"the model's tokenizer failed on a text of {self.length} characters: {_clip(self.detail)}"

    @property
    def remedy(self) -> str:
        return "Give a shorter text, or one without very long runs of the same characters."


@dataclasses.dataclass(eq=False, repr=False)
class UnknownToken(OstinatoError, IndexError):
    """A token id outside the vocabulary."""

    token_id: int
    vocab_size: int

    def message(self) -> str:
        return f"token id {self.token_id} is outside the vocabulary of {self.vocab_size} tokens"

    @property
    def remedy(self) -> str:
        return f"Token ids of this model run from 0 to {self.vocab_size - 1}."


@dataclasses.dataclass(eq=False, repr=False)
class ChatTemplateError(OstinatoError, ValueError):
    """A chat template could not be parsed, refused the conversation, or broke a limit.

    `reason` says which; `detail` is the template's or its engine's own message, possibly empty.
    `system_message` is True when the refused conversation held a system message, the usual cause of a
    refusal by templates that were written without one.
    """

    reason: str
    detail: str = ""
    system_message: bool = False

    def message(self) -> str:
        return f"chat template: {self.reason}" + (f": {self.detail}" if self.detail else "")

    @property
    def remedy(self) -> str:
        if self.system_message:
            return (
                "This template may have no place for a system message: "
                "put its text at the start of the first user message."
            )
        return "Check the order and roles of the messages, or give another template."
