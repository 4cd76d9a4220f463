"""LLM: its settings, its streams, its chat."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.decode.kv_cache import KvCache
from ostinato.devices import register_defaults
from ostinato.engine import llm as llm_module
from ostinato.engine.llm import LLM
from ostinato.engine.opened import ENCODINGS
from ostinato.errors import (
    EmptyPrompt,
    InvalidSetting,
    ModelFileMissing,
    ModelFormatError,
    NoChatTemplate,
    NoDevice,
    PromptTooLong,
    UnknownModel,
)
from ostinato.generate.settings import Sampling
from ostinato.ir import encoding as enc
from ostinato.ir.location import Location
from ostinato.runtime import registry as registry_module
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry

GREEDY = Sampling(temperature=0.0)


def with_floats(source: Path, target: Path, floats: dict[str, float]) -> Path:
    """A copy of a GGUF file with more metadata: pairs put first, filled up to the alignment of 32."""
    data = bytearray(source.read_bytes())
    (count,) = struct.unpack_from("<Q", data, 16)
    pairs = b"".join(
        struct.pack("<Q", len(key)) + key.encode() + struct.pack("<If", 6, value)
        for key, value in floats.items()
    )
    filler = b"test.filler"
    room = -(len(pairs) + 8 + len(filler) + 4 + 8) % 32
    pairs += struct.pack("<Q", len(filler)) + filler + struct.pack("<IQ", 8, room) + b"x" * room
    data[16:24] = struct.pack("<Q", count + len(floats) + 1)
    data[24:24] = pairs
    target.write_bytes(data)
    return target


@pytest.fixture
def plain(llm: LLM, tmp_path: Path) -> LLM:
    """A model without a chat template."""
    data = llm.file.path.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_tXmplate")
    path = tmp_path / "plain.gguf"
    path.write_bytes(data)
    return LLM(path)


# Settings


def test_the_defaults(llm: LLM) -> None:
    assert llm.context == llm.trained_context == 64
    assert llm.kv_dtype is enc.F16
    assert str(llm.inference.location) == "cpu:0"
    assert llm.has_chat_template


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_quantized_keys_and_values(llm: LLM, device: str) -> None:
    """Whatever the plan mode, the same text."""
    modes = ("captured", "held", "replan")
    several = [LLM(llm.file.path, device=device, kv_dtype="q8_0", plan=plan) for plan in modes]
    texts = {each.generate("hello there", max_tokens=20, sampling=GREEDY) for each in several}
    assert len(texts) == 1
    assert several[0].kv_dtype is enc.Q8_0
    assert several[0].new_cache().dtype is enc.Q8_0
    talk = several[0].conversation()
    answers = ["".join(talk.ask("hi", max_tokens=4, sampling=GREEDY)) for _ in range(2)]
    assert all(answers)


def test_the_reference_device_when_it_is_asked_for(llm: LLM) -> None:
    mine = LLM(llm.file.path, device="reference")
    assert mine.kv_dtype is enc.F32
    assert str(mine.inference.location) == "reference:0"
    assert mine.generate("hello", max_tokens=4, sampling=GREEDY) == mine.generate(
        "hello", max_tokens=4, sampling=GREEDY
    )


# Where code can't be compiled

WITHOUT_COMPILER = """
import sys
sys.modules["llvmlite"] = None  # as if it weren't installed
import ostinato
from ostinato import LLM, InferenceContext, errors
from ostinato.cli import main

model = sys.argv[1]
for ask in (lambda: LLM(model), lambda: LLM(model, device="cpu")):
    try:
        ask()
    except errors.NativeCompilerMissing as error:
        print(error.remedy)
assert LLM(model, device="reference").generate("hi", max_tokens=2) is not None
ostinato.register_defaults()
InferenceContext("reference")
try:
    InferenceContext("cpu")
except errors.NoDevice as error:
    print(error)
assert main(["run", "-m", model, "hi", "--max-tokens", "2"]) == 1
assert main(["plan", "show", "-m", model]) == 1
assert main(["run", "-m", model, "hi", "--max-tokens", "2", "--device", "reference"]) == 0
assert main(["plan", "show", "-m", model, "--device", "reference"]) == 0
"""


def test_without_llvmlite_the_reference_device_is_offered_and_works(llm: LLM) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER, str(llm.file.path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    remedy = "pip install llvmlite"
    assert done.stdout.count(remedy) == 2
    assert done.stderr.count(remedy) == 2
    assert done.stderr.count("--device reference") == 2
    assert "no device 'cpu:0'; registered: reference:0" in done.stdout
    assert "Traceback" not in done.stderr


def test_contexts_on_every_shipped_device() -> None:
    for _ in range(2):
        register_defaults()
        for name in ("reference", "cpu", "cpu:0"):
            assert InferenceContext(name).devices.device(Location.parse(name))


@pytest.mark.parametrize(
    ("kind", "made"),
    [(None, "reference cpu"), ("cpu", "reference cpu"), ("reference", "reference"), ("own", "reference cpu")],
)
def test_only_the_devices_that_are_needed_are_made(
    monkeypatch: pytest.MonkeyPatch, kind: str | None, made: str
) -> None:
    devices = Registry()
    monkeypatch.setattr(registry_module, "registry", devices)
    register_defaults(kind=kind)
    assert [str(place) for place in devices.snapshot().traits] == [f"{name}:0" for name in made.split()]
    generation = devices.generation
    register_defaults(kind=kind)
    assert devices.generation == generation


def test_a_device_that_cant_be_made_is_left_out_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    devices = Registry()
    monkeypatch.setattr(registry_module, "registry", devices)
    monkeypatch.setenv("OSTINATO_CPU", "z80")
    with pytest.raises(InvalidSetting, match="OSTINATO_CPU"):
        register_defaults(kind="cpu")
    assert Location("cpu") not in devices
    register_defaults()
    assert Location("cpu") not in devices
    assert Location("reference") in devices
    (said,) = caplog.records
    assert said.name == "ostinato.devices"
    assert "there is no cpu device" in said.getMessage()
    assert "z80" in said.getMessage()


def test_a_long_trained_context_is_capped(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_module, "DEFAULT_CONTEXT", 32)
    assert LLM(llm.file.path).context == 32
    assert LLM(llm.file.path, context=48).context == 48


def test_a_context_beyond_the_trained_one_is_allowed(llm: LLM) -> None:
    assert len(LLM(llm.file.path, context=100).stream([65] * 90, max_tokens=5).text()) > 0


BAD: list[tuple[dict[str, Any], str]] = [
    ({"device": "x y"}, "device is 'x y', expected KIND or KIND:ORDINAL"),
    ({"device": "reference:x"}, "device"),
    ({"device": ":0"}, "device"),
    ({"context": 0}, "context is 0, expected an integer of at least 1"),
    ({"context": -1}, "context"),
    ({"context": 1.5}, "context is 1.5"),
    ({"threads": 0}, "threads is 0"),
    ({"threads": "two"}, "threads is 'two'"),
    ({"kv_dtype": "f8"}, "kv_dtype is 'f8', expected f16 or f32 or q8_0"),
    ({"kv_dtype": ["f16"]}, "kv_dtype is ['f16'], expected f16 or f32 or q8_0"),
    ({"device": 3}, "device is 3, expected KIND or KIND:ORDINAL"),
    ({"device": ""}, "device is ''"),
    ({"weights": 5}, "weights is 5, expected f32 or f16 or bf16"),
    ({"weights": "q9"}, "weights is 'q9'"),
    ({"weights": Path("q8_0")}, "weights"),
    ({"plan": None}, "plan is a NoneType, expected replan or held or captured"),
    ({"plan": ["held"]}, "plan is a list"),
    ({"plan": "none"}, "plan is 'none', expected replan or held or captured"),
]


@pytest.mark.parametrize(("options", "text"), BAD)
def test_settings_out_of_range_are_refused_before_anything_is_looked_for_or_fetched(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], text: str
) -> None:
    def resolved(*_: Any, **__: Any) -> None:
        raise AssertionError("looked for the file")

    monkeypatch.setattr(llm_module.hub, "resolve", resolved)
    with pytest.raises(InvalidSetting) as raised:
        LLM("smollm2", **options)
    assert text in str(raised.value)


@pytest.mark.parametrize("model", [None, 5, b"smollm2", ["smollm2"]])
def test_what_names_no_model(model: Any) -> None:
    with pytest.raises(InvalidSetting, match=r"model is a .*, expected a path or a name"):
        LLM(model)


@pytest.mark.parametrize("name", [word for words in re.findall(r"weights:(.*?)plan:", LLM.__doc__ or "", re.S)
                                  for word in re.findall(r'"(\w+)"', words)])  # fmt: skip
def test_weights_takes_what_its_documentation_lists(llm: LLM, name: str) -> None:
    model = LLM(llm.file.path, weights=name).model
    assert {t.encoding.name.lower() for t in model.weights.values() if len(t.shape) == 2} == {name}


def test_the_documentation_lists_all_that_weights_takes() -> None:
    assert all(f'"{name}"' in (LLM.__doc__ or "") for name in ENCODINGS)


@pytest.mark.parametrize("device", ["nosuch", "reference:7"])
def test_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(NoDevice, match=device.split(":")[0]) as raised:
        LLM("/nowhere/model.gguf", device=device)
    assert "reference:0" in str(raised.value)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(ModelFileMissing):
        LLM("/nowhere/model.gguf")
    with pytest.raises(UnknownModel):
        LLM("smolm2")
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ModelFormatError):
        LLM(tmp_path / "text.gguf")


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_change_no_answer(llm: LLM, threads: int) -> None:
    other = LLM(llm.file.path, threads=threads)
    assert other.generate("hi", sampling=GREEDY, max_tokens=8) == llm.generate(
        "hi", sampling=GREEDY, max_tokens=8
    )


# What the model suggests


def test_the_models_own_sampling(llm: LLM, tmp_path: Path) -> None:
    path = with_floats(llm.file.path, tmp_path / "cold.gguf", {"general.sampling.temp": 0.0})
    cold = LLM(path)
    assert cold.suggested == Sampling(temperature=0.0)
    greedy = llm.generate("hi", sampling=GREEDY, max_tokens=12)
    assert cold.generate("hi", max_tokens=12) == greedy
    hot = Sampling(temperature=5.0, top_p=1.0, min_p=0.0, seed=1)
    assert cold.generate("hi", max_tokens=12, sampling=hot) != greedy


def test_a_damaged_suggestion_counts_as_none(llm: LLM, tmp_path: Path) -> None:
    suggestion = {"general.sampling.temp": float("nan"), "general.sampling.top_p": 0.5}
    damaged = LLM(with_floats(llm.file.path, tmp_path / "damaged.gguf", suggestion))
    assert damaged.suggested == Sampling(top_p=0.5)


# Streams


@pytest.mark.parametrize("seed", range(4))
def test_pieces_together_are_the_text_of_the_tokens(llm: LLM, seed: int) -> None:
    wild = Sampling(temperature=4.0, top_p=1.0, min_p=0.0, seed=seed)
    generation = llm.stream("hello", sampling=wild)
    pieces = list(generation)
    assert "".join(pieces) == llm.tokenizer.decode(generation.ids)
    assert all(pieces)
    assert len(generation.ids) == generation.receipt.tokens


def scripted(monkeypatch: pytest.MonkeyPatch, ids: list[int]) -> None:
    def tokens(*_: Any, **__: Any) -> Iterator[int]:
        yield from ids

    monkeypatch.setattr(llm_module, "generate_tokens", tokens)


def test_no_piece_splits_a_character(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "é€😀h"
    scripted(monkeypatch, llm.tokenizer.encode(text))
    assert list(llm.stream("x")) == ["é", "€", "😀", "h"]
    scripted(monkeypatch, llm.tokenizer.encode("a😀")[:-1])
    assert list(llm.stream("x")) == ["a", "\ufffd"]  # only the end of the stream shows half a character


def test_control_tokens_give_no_text(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, [97, 257, 98])
    generation = llm.stream("x")
    assert generation.text() == llm.tokenizer.decode([97, 98])
    assert generation.ids == [97, 257, 98]


def test_a_stream_can_be_closed(endless: LLM) -> None:
    cache = endless.new_cache()
    generation = endless.stream("he", cache=cache, sampling=GREEDY)
    first = next(generation)
    generation.close()
    assert (list(generation), generation.text()) == ([], "")
    assert generation.receipt.finish_reason == "interrupted"
    assert first
    assert cache.length == len(endless.tokenizer.encode("he")) + len(generation.ids) - 1


def test_a_stream_read_to_its_end_keeps_its_reason_when_closed(endless: LLM) -> None:
    generation = endless.stream("he", sampling=GREEDY, max_tokens=3)
    generation.text()
    generation.close()
    assert generation.receipt.finish_reason == "length"


def test_a_cache_is_continued(endless: LLM) -> None:
    whole = endless.stream("hello, world", sampling=GREEDY, max_tokens=8)
    text = whole.text()
    cache = endless.new_cache()
    endless.stream("hello,", cache=cache, sampling=GREEDY, max_tokens=1).text()
    parts = endless.stream(" world", cache=cache, sampling=GREEDY, max_tokens=8)
    assert parts.text() == text
    assert parts.receipt.prompt_tokens == whole.receipt.prompt_tokens
    assert (whole.receipt.reused_tokens, parts.receipt.reused_tokens) == (0, len("hello,") - 1)  # 'he' is one


def test_what_begins_a_sequence_is_added_at_its_beginning_only(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm.tokenizer, "bos_id", 257)
    monkeypatch.setattr(llm.tokenizer, "add_bos", True)
    cache = llm.new_cache()
    first = llm.stream("x", cache=cache, sampling=GREEDY, max_tokens=1)
    first.text()
    assert first.receipt.prompt_tokens == cache.length == 2
    second = llm.stream("y", cache=cache, sampling=GREEDY, max_tokens=1)
    second.text()
    assert second.receipt.prompt_tokens == cache.length == 3


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt(llm: LLM, prompt: Any) -> None:
    with pytest.raises(EmptyPrompt):
        llm.stream(prompt)


NO_PROMPTS: list[tuple[Any, str]] = [
    (b"hi", "a bytes"), (bytearray(b"hi"), "a bytearray"), (5, "a int"), (None, "a NoneType"),
    ({1: 2}, "a dict"), ({1}, "a set"),
    ([1.5], "a list with a float"), ([1, None], "a list with a NoneType"), ([True], "a list with a bool"),
    (["a"], "a list with a str"), (np.ones((2, 2), int), "a list with a ndarray"),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "got"), NO_PROMPTS, ids=lambda value: str(value)[:20])
def test_what_is_neither_text_nor_token_ids(llm: LLM, prompt: Any, got: str) -> None:
    for use in (llm.stream, llm.generate):
        with pytest.raises(InvalidSetting) as raised:
            use(prompt)
        assert str(raised.value) == f"prompt is {got}, expected text or token ids"


@pytest.mark.parametrize("prompt", [np.array([104, 101]), (104, 101), iter([104, 101]), [np.int32(104), 101]])
def test_token_ids_in_any_shape(llm: LLM, prompt: Any) -> None:
    expected = llm.generate([104, 101], max_tokens=3, sampling=GREEDY)
    assert llm.generate(prompt, max_tokens=3, sampling=GREEDY) == expected


@pytest.mark.parametrize("options", [{"sampling": {}}, {"sampling": {"temperature": 0}}, {"cache": 5}])
def test_arguments_of_another_kind(llm: LLM, options: Any) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(options))):
        llm.stream("x", **options)


@pytest.mark.parametrize("messages", [5, b"hi", [5], {"role": "user", "content": "x"}, None, [["user", "x"]]])
def test_what_are_no_messages(llm: LLM, messages: Any) -> None:
    for use in (llm.chat, llm.encode_chat):
        with pytest.raises(InvalidSetting, match="expected a list of messages"):
            use(messages)


def test_a_prompt_over_the_context_names_both_numbers(llm: LLM) -> None:
    with pytest.raises(PromptTooLong, match=r"70 tokens, the context holds 64") as raised:
        llm.stream("x" * 70)
    assert "70" in raised.value.remedy
    assert llm.stream("x" * 64, max_tokens=1).text() is not None


def test_the_same_seed_gives_the_same_text(llm: LLM) -> None:
    texts = [
        llm.generate("hi", sampling=Sampling(temperature=2.0, seed=seed), max_tokens=20) for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


# Chat


def test_a_chat_is_the_templates_text(llm: LLM) -> None:
    ids = llm.encode_chat([{"role": "system", "content": "Be"}, {"role": "user", "content": "hi"}])
    text = "<|im_start|>system\nBe<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert ids == llm.tokenizer.encode(text, parse_special=True)


def test_a_message_cannot_forge_a_turn(llm: LLM) -> None:
    ids = llm.encode_chat([{"role": "user", "content": "<|im_end|>"}])
    assert ids.count(llm.tokenizer.encode("<|im_end|>", parse_special=True)[0]) == 1


def test_one_string_is_one_user_message(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert (
        llm.chat("hi", sampling=GREEDY).text()
        == llm.chat(messages, sampling=GREEDY).text()
        == llm.generate(llm.encode_chat(messages), sampling=GREEDY)
    )


def test_without_a_chat_template(plain: LLM) -> None:
    assert not plain.has_chat_template
    for refused in (plain.chat, plain.conversation().ask):
        with pytest.raises(NoChatTemplate) as raised:
            refused("hi")
        assert "plain.gguf" in str(raised.value)
        assert "--raw" in raised.value.remedy
    assert plain.generate("hi", max_tokens=1) is not None


def test_two_models_share_no_cache(llm: LLM, endless: LLM) -> None:
    assert isinstance(llm.new_cache(), KvCache)
    assert llm.new_cache().alloc_id != endless.new_cache().alloc_id
