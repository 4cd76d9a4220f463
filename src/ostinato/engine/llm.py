"""A model ready to answer."""

from __future__ import annotations

import operator
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ostinato import devices, hub
from ostinato.decode.kv_cache import KvCache
from ostinato.device.contract import Device
from ostinato.device.mapped import MapsWeights
from ostinato.engine.memory import check_memory
from ostinato.engine.opened import encoding_named, open_model
from ostinato.engine.pool import PlanMode, SlotPool
from ostinato.engine.receipt import Receipt
from ostinato.engine.token_loop import generate_tokens
from ostinato.engine.turn import Turn
from ostinato.errors.generate import GenerationBusy, InvalidSetting, NoChatTemplate
from ostinato.generate.sampler import Sampler
from ostinato.generate.settings import Sampling, check_choice, check_count, check_kind, check_sampling
from ostinato.ir import encoding as enc
from ostinato.ir.encoding import Encoding
from ostinato.ir.location import Location
from ostinato.models.contract import Family
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.pack_cache import PackCache
from ostinato.text import ChatTemplate, StreamDecoder, encode_chat

if TYPE_CHECKING:
    from ostinato.engine.conversation import Conversation

DEFAULT_CONTEXT = 8192
KV_DTYPES: Mapping[str, Encoding] = {"f16": enc.F16, "f32": enc.F32, "q8_0": enc.Q8_0}

Message = Mapping[str, Any]


class Generation(Iterator[str]):
    """Text as it comes: an iterator of pieces that never split a character. `receipt` fills meanwhile; `ids`
    are the tokens so far. Whatever a thread does with it while another computes a piece raises
    GenerationBusy and changes nothing."""

    def __init__(self, tokens: Generator[int], decoder: StreamDecoder, receipt: Receipt) -> None:
        self.receipt = receipt
        self.ids: list[int] = []
        self._pieces = self._decode(tokens, decoder)
        self._turn = Turn(GenerationBusy)

    def __next__(self) -> str:
        with self._turn.mine():
            return next(self._pieces)

    def text(self) -> str:
        """All that is still to come."""
        return "".join(self)

    def close(self) -> None:
        """End it here; `receipt.finish_reason` stays "interrupted" unless it was complete."""
        with self._turn.mine():
            self._pieces.close()

    def _decode(self, tokens: Generator[int], decoder: StreamDecoder) -> Generator[str]:
        with closing(tokens):
            for token in tokens:
                self.ids.append(token)
                if piece := decoder.push(token):
                    yield piece
        if piece := decoder.finish():
            yield piece


class LLM:
    """A model file, its tokenizer and a device.

    model: a `.gguf` file, a folder with config.json and safetensors, `hf:org/name`, or a short alias.
    context: positions of the KV cache, by default what the model was trained for, at most 8192. kv_dtype:
    "f16", "f32" or "q8_0" (int8 in blocks of 32 with a scale each). threads: CPU threads of the whole
    process's devices, by default the physical cores that this process may use. weights: "q8_0", "q4_1",
    "q4_0", "bf16", "f16" or "f32", to which matrices are encoded that the files hold as floats. plan:
    "captured" replays a recorded plan where that can be, "held" re-binds a plan made once, "replan" plans
    every step. families: others than the built-in ones, as in `load_model`.
    pack_cache: packed weights are kept in the cache folder, where the next start maps them; InvalidSetting
    for a device that can't.

    Raises InvalidSetting and NoDevice before anything is looked for or fetched, what `hub.resolve` and
    `load_model` raise, NotEnoughMemory.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = hub.DEFAULT_MODEL,
        *,
        device: str | None = None,
        context: int | None = None,
        kv_dtype: str | None = None,
        threads: int | None = None,
        weights: str | None = None,
        plan: str = "captured",
        families: Sequence[Family] = (),
        pack_cache: bool = False,
        progress: bool = False,
    ) -> None:
        check_kind("model", model, str | os.PathLike, "a path or a name")
        location = location_of(device)
        check_count("context", context)
        check_count("threads", threads)
        check_kind("pack_cache", pack_cache, bool, "True or False")
        check_kind("plan", plan, str, " or ".join(mode.value for mode in PlanMode))
        check_choice("plan", plan, [mode.value for mode in PlanMode])
        check_choice("kv_dtype", kv_dtype, KV_DTYPES)
        encoding = encoding_named("weights", weights)
        devices.register_defaults(threads, location.kind)
        self.inference = InferenceContext(location)
        at = self.inference.devices.device(location)
        traits = at.traits
        self.packs = packs_on(at) if pack_cache else None
        self.file = hub.resolve(model, progress=progress)
        opened = open_model(self.file.path, encoding, families, self.packs)
        self.model = opened.model
        self.slots = SlotPool()
        self.plan_mode = PlanMode(plan)
        self.context = int(context or min(self.trained_context, DEFAULT_CONTEXT))
        self.kv_dtype = KV_DTYPES[kv_dtype] if kv_dtype else traits.kv_dtype
        check_memory(self.model, traits, self.context, self.kv_dtype)
        self.tokenizer = opened.tokenizer()
        self.suggested = opened.suggested
        self._template_source = opened.template(self.tokenizer)
        self._template: ChatTemplate | None = None

    @property
    def trained_context(self) -> int:
        """The longest context the model was trained for; beyond it answers get worse."""
        return self.model.config.context_length

    @property
    def has_chat_template(self) -> bool:
        return self._template_source.source is not None

    def new_cache(self) -> KvCache:
        """An empty KV cache of this context."""
        return KvCache.allocate(self.model, self.inference, self.context, self.kv_dtype)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The token ids of a conversation up to the assistant's turn.

        Text inside messages never becomes a control token, whatever it spells. Raises InvalidSetting for
        what are no messages, NoChatTemplate, ChatTemplateError.
        """
        check_messages(messages)
        template = self._template_source
        if template.source is None:
            raise NoChatTemplate(str(self.file.reference))
        if self._template is None:
            self._template = ChatTemplate(template.source, bos=template.bos, eos=template.eos)
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
        PromptTooLong, TokenOutOfRange, CacheMismatch, InvalidSetting before anything runs.
        """
        check_sampling(sampling)
        check_kind("cache", cache, KvCache | None, "a KvCache")
        if cache is None:
            cache = self.new_cache()
        continuation = isinstance(prompt, str)
        if isinstance(prompt, str):
            # What begins a sequence belongs to its beginning only.
            ids = self.tokenizer.encode(prompt, add_special=cache.length == 0, parse_special=True)
        else:
            ids = token_ids(prompt)
        receipt = Receipt()
        tokens = generate_tokens(
            self.model, ids, cache, self.inference, Sampler((sampling or Sampling()).over(self.suggested)),
            max_tokens=max_tokens, end_ids=self.tokenizer.end_ids, receipt=receipt,
            pool=self.slots, mode=self.plan_mode,
        )  # fmt: skip
        return Generation(tokens, self.tokenizer.decoder(continuation=continuation), receipt)

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
        return self.stream(self.encode_chat(messages), max_tokens=max_tokens, sampling=sampling)

    def conversation(self, system: str | None = None) -> Conversation:
        """A conversation that keeps its KV cache between turns."""
        from ostinato.engine.conversation import Conversation

        return Conversation(self, system)


def packs_on(device: Device) -> PackCache:
    """The user's own packed weights, for a device that maps them; raises InvalidSetting for any other, which
    would go on packing at each start."""
    if not isinstance(device, MapsWeights):
        raise InvalidSetting("pack_cache", "a device that maps packed weights", str(device.location))
    return PackCache.of_user()


def token_ids(prompt: Iterable[int]) -> list[int]:
    """A prompt that is no text, as a list; raises InvalidSetting for what are no whole numbers.

    Bytes are refused though they iterate as numbers: they are text that wasn't decoded.
    """
    expected = "text or token ids"
    no_list = (bytes, bytearray, memoryview, Mapping, AbstractSet)
    if isinstance(prompt, no_list) or not isinstance(prompt, Iterable):
        raise InvalidSetting("prompt", expected, f"a {type(prompt).__name__}")
    ids = []
    for token in prompt:
        try:
            if isinstance(token, bool):
                raise TypeError
            ids.append(operator.index(token))
        except TypeError:
            raise InvalidSetting("prompt", expected, f"a list with a {type(token).__name__}") from None
    return ids


def check_messages(messages: Sequence[Message]) -> None:
    """Raises InvalidSetting unless `messages` is a sequence of mappings."""
    expected = "a list of messages, each with role and content"
    check_kind("messages", messages, Sequence, expected)
    for message in messages:
        if not isinstance(message, Mapping):
            raise InvalidSetting("messages", expected, f"a list with a {type(message).__name__}")


def location_of(device: str | None) -> Location:
    """The device that a user names, or the default one; raises InvalidSetting."""
    text = devices.default_location() if device is None else device
    try:
        if not isinstance(text, str):
            raise ValueError
        return Location.parse(text)
    except ValueError:
        raise InvalidSetting("device", "KIND or KIND:ORDINAL", repr(device)) from None
