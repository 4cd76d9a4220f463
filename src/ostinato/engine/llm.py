"""A model ready to answer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ostinato import devices, hub
from ostinato.decode.kv_cache import KvCache
from ostinato.engine.memory import check_memory
from ostinato.engine.receipt import Receipt
from ostinato.engine.token_loop import check_prompt, generate_tokens
from ostinato.errors.generate import EmptyPrompt, InvalidSetting, NoChatTemplate, PromptTooLong
from ostinato.formats.gguf import GgufFile
from ostinato.generate.sampler import Sampler
from ostinato.generate.settings import Sampling, suggested
from ostinato.ir.dtype import DType
from ostinato.ir.location import Location
from ostinato.models.loader import model_from_gguf
from ostinato.runtime.context import InferenceContext
from ostinato.text import Tokenizer

DEFAULT_CONTEXT = 8192
KV_DTYPES: Mapping[str, DType] = {"f16": DType.F16, "f32": DType.F32}

Message = Mapping[str, Any]


@dataclass
class Generation(Iterator[str]):
    """Text as it comes: an iterator of pieces that never split a character. `receipt` fills meanwhile; `ids`
    are the tokens so far."""

    _pieces: Iterator[str]
    receipt: Receipt
    ids: list[int] = field(default_factory=list)

    def __next__(self) -> str:
        return next(self._pieces)

    def text(self) -> str:
        """All that is still to come."""
        return "".join(self)


class LLM:
    """A model file, its tokenizer and a device.

    model: a path to a `.gguf` file or a short alias. context: positions of the KV cache, at most what the
    model was trained for by default. kv_dtype: "f16" or "f32". threads: CPU threads, by default the physical
    cores that this process may use.

    Raises what `hub.resolve` and `load_model` raise, InvalidSetting, NoDevice, NotEnoughMemory.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = hub.DEFAULT_MODEL,
        *,
        device: str | None = None,
        context: int | None = None,
        kv_dtype: str | None = None,
        threads: int | None = None,
        progress: bool = False,
    ) -> None:
        location = _location(device)
        if context is not None and context < 1:
            raise InvalidSetting("context", "an integer of at least 1", repr(context))
        if kv_dtype is not None and kv_dtype not in KV_DTYPES:
            raise InvalidSetting("kv_dtype", " or ".join(KV_DTYPES), repr(kv_dtype))
        if threads is not None and threads < 1:
            raise InvalidSetting("threads", "an integer of at least 1", repr(threads))
        devices.register_defaults(threads)
        self.inference = InferenceContext(location)
        traits = self.inference.devices.device(location).traits
        self.file = hub.resolve(model, progress=progress)
        with GgufFile.open(self.file.path) as file:
            self.model = model_from_gguf(file)
            metadata = dict(file.metadata)
        self.context = context or min(self.model.config.context_length, DEFAULT_CONTEXT)
        self.kv_dtype = KV_DTYPES[kv_dtype] if kv_dtype else traits.kv_dtypes[0]
        check_memory(self.model, traits, self.context, self.kv_dtype)
        self.tokenizer = Tokenizer.from_gguf(metadata)
        self.suggested = suggested(metadata)
        self._metadata = metadata
        self._template: Any = None

    @property
    def has_chat_template(self) -> bool:
        return bool(self._metadata.get("tokenizer.chat_template"))

    def new_cache(self) -> KvCache:
        """An empty KV cache of this context."""
        return KvCache.allocate(self.model, self.inference, self.context, self.kv_dtype)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The token ids of a conversation up to the assistant's turn; raises NoChatTemplate, ChatTemplateError.

        Text inside messages never becomes a control token, whatever it spells.
        """
        from ostinato.text.chat import ChatTemplate, encode_chat

        source = self._metadata.get("tokenizer.chat_template")
        if not isinstance(source, str) or not source:
            raise NoChatTemplate(str(self.file.reference))
        if self._template is None:
            tokenizer = self.tokenizer
            self._template = ChatTemplate(
                source, bos=_text_of(tokenizer, tokenizer.bos_id), eos=_text_of(tokenizer, tokenizer.eos_id)
            )
        return encode_chat(self.tokenizer, self._template, messages)

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        cache: KvCache | None = None,
    ) -> Generation:
        """Continue a text (markers of the model's own in it are read as such) or token ids, piece by piece.

        `cache` is continued from what it holds; without one a fresh one is used. Raises EmptyPrompt,
        PromptTooLong, InvalidSetting before anything runs.
        """
        text = isinstance(prompt, str)
        ids = self.tokenizer.encode(prompt, parse_special=True) if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise EmptyPrompt()
        if cache is None:
            if len(ids) > self.context:
                raise PromptTooLong(len(ids), self.context)
            cache = self.new_cache()
        check_prompt(ids, cache, max_tokens)
        sampler = Sampler((sampling or Sampling()).over(self.suggested))
        receipt = Receipt()
        generation = Generation(iter(()), receipt)
        tokens = generate_tokens(
            self.model, ids, cache, self.inference, sampler,
            max_tokens=max_tokens, end_ids=self.tokenizer.end_ids, receipt=receipt,
        )  # fmt: skip
        generation._pieces = self._pieces(tokens, generation.ids, continuation=text)
        return generation

    def generate(
        self, prompt: str | Sequence[int], *, max_tokens: int | None = None, sampling: Sampling | None = None
    ) -> str:
        """The continuation of a prompt as one text; see `stream`."""
        return self.stream(prompt, max_tokens=max_tokens, sampling=sampling).text()

    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
    ) -> Generation:
        """The assistant's answer to messages (`{"role": ..., "content": ...}`) or to one user message."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        generation = self.stream(self.encode_chat(messages), max_tokens=max_tokens, sampling=sampling)
        return generation

    def conversation(self, system: str | None = None) -> Any:
        """A conversation that keeps its KV cache between turns."""
        from ostinato.engine.conversation import Conversation

        return Conversation(self, system)

    def _pieces(self, tokens: Iterator[int], ids: list[int], *, continuation: bool) -> Iterator[str]:
        decoder = self.tokenizer.decoder(continuation=continuation)
        for token in tokens:
            ids.append(token)
            if piece := decoder.push(token):
                yield piece
        if piece := decoder.finish():
            yield piece


def _location(device: str | None) -> Location:
    try:
        return Location.parse(device or devices.default_location())
    except ValueError as error:
        raise InvalidSetting("device", "KIND or KIND:ORDINAL", repr(device)) from error


def _text_of(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.token_bytes(token).decode("utf-8", "replace")
