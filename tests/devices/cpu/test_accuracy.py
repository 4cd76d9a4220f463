"""What rounded activations cost on the real default model: distances from float32, beside llama.cpp's.

`benchmarks/accuracy.py` measures the same and more; its figures for llama.cpp are the yardstick here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from devices.cpu.regionwise import with_weights
from ostinato.decode.forward import forward_with_kv_context, forward_with_kv_context_captured
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import All, Argmax
from ostinato.formats.gguf import GgufFile
from ostinato.ir import encoding as enc
from ostinato.models.contract import Model
from ostinato.models.recode import Recode
from ostinato.runtime.context import InferenceContext
from ostinato.text import Tokenizer
from tinymodels import FIXTURES

pytestmark = pytest.mark.model
WINDOW = 512
TEXT = FIXTURES / "alice.txt"
GREEDY = json.loads((FIXTURES / "smollm2-greedy.json").read_text("utf-8"))


class Distance(NamedTuple):
    """From float32: the mean of KL(float32 ‖ engine) in nats, how often the likeliest token is the same, and
    how much larger the text's perplexity is."""

    kl: float
    same: float
    perplexity: float


LLAMA_CPP = {
    1: Distance(2.76e-3, 0.9551, 0.0011),
    6: Distance(2.79e-3, 0.9600, 0.0016),
}
"""By windows of the text: llama.cpp (llama-cpp-python 0.3.36) with the same file, by `benchmarks/accuracy.py
MODEL --windows N --llama-python PYTHON` on an AVX-512 machine."""


@pytest.fixture(scope="module")
def cpu(context: InferenceContext) -> InferenceContext:
    """The CPU device, registered beside the reference."""
    return InferenceContext("cpu", context.devices)


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Any) -> Tokenizer:
    with GgufFile.open(smollm2_path) as file:
        return Tokenizer.from_gguf(file.metadata)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def logits(model: Model, ids: Sequence[int], context: InferenceContext, kv: enc.Encoding) -> np.ndarray:
    cache = KvCache.allocate(model, context, WINDOW, kv)  # always so many, as kernels are compiled for it
    return forward_with_kv_context(model, ids, cache, context, want=All())


def distance(
    ids: Sequence[int], engine: Callable[[Any], np.ndarray], exact: Callable[[Any], np.ndarray]
) -> Distance:
    """Over windows of `ids`, each from an empty cache."""
    kl, same, losses = [], [], []
    for at in range(0, len(ids), WINDOW):
        window = ids[at : at + WINDOW]
        mine, theirs = log_softmax(engine(window)), log_softmax(exact(window))
        kl.append((np.exp(theirs) * (theirs - mine)).sum(1).mean())
        same.append((mine.argmax(1) == theirs.argmax(1)).mean())
        rows = np.arange(WINDOW - 1)
        losses.append([-logs[rows, window[1:]].mean() for logs in (mine, theirs)])
    loss, base = np.mean(losses, 0)
    return Distance(float(np.mean(kl)), float(np.mean(same)), float(np.exp(loss - base) - 1))


@pytest.mark.parametrize("windows", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_as_near_to_float32_as_llama_cpp(
    smollm2: Model, tokenizer: Tokenizer, context: InferenceContext, cpu: InferenceContext, windows: int
) -> None:
    ids = tokenizer.encode(TEXT.read_text("utf-8"))[: windows * WINDOW]
    assert len(ids) == windows * WINDOW
    found = distance(
        ids,
        lambda window: logits(smollm2, window, cpu, enc.F16),
        lambda window: logits(smollm2, window, context, enc.F32),
    )
    peer = LLAMA_CPP[windows]
    assert 1e-4 < found.kl <= 0.3 * peer.kl, found
    assert found.same >= peer.same - 0.005, found
    assert abs(found.perplexity) <= max(0.01, peer.perplexity), found


def greedy(
    model: Model, prompt: Sequence[int], count: int, context: InferenceContext, kv: enc.Encoding
) -> list[int]:
    cache, slot = KvCache.allocate(model, context, len(prompt) + count, kv), DecodeSlot()
    ids = [forward_with_kv_context_captured(model, prompt, cache, context, slot, want=Argmax())]
    while len(ids) < count:
        ids.append(forward_with_kv_context_captured(model, ids[-1:], cache, context, slot, want=Argmax()))
    return ids


def in_one_call(
    model: Model, prompt: Sequence[int], expected: Sequence[int], context: InferenceContext, kv: enc.Encoding
) -> list[int]:
    """The likeliest token after the prompt, and after each of the `expected` ones: greedy text up to where it
    parts from them."""
    rows = logits(model, [*prompt, *expected[:-1]], context, kv)
    return [int(token) for token in rows[len(prompt) - 1 :].argmax(1)]


@pytest.mark.parametrize(
    ("case", "steps"),
    [pytest.param(case, steps, marks=[pytest.mark.slow] if steps and at else [],
                  id=f"{case['prompt'][:24]}-{'steps' if steps else 'one call'}")
     for steps in (False, True) for at, case in enumerate(GREEDY)],
)  # fmt: skip
def test_greedy_text_leaves_that_of_float32_at_near_ties_alone(
    smollm2: Model, context: InferenceContext, cpu: InferenceContext, case: dict[str, Any], steps: bool
) -> None:
    """The expected text is transformers', in float32.

    By default each prompt's in one call, whose rows have the bits that they have alone, and one prompt's step
    by step.
    """
    prompt, expected = case["prompt_ids"], case["ids"]
    if steps:
        found = greedy(smollm2, prompt, len(expected), cpu, enc.F16)
    else:
        found = in_one_call(smollm2, prompt, expected, cpu, enc.F16)
    parts = [at for at, (mine, theirs) in enumerate(zip(found, expected, strict=True)) if mine != theirs]
    if parts:
        at = parts[0]
        before = [*prompt, *expected[:at]]
        cache = KvCache.allocate(smollm2, context, len(before), enc.F32)
        row = forward_with_kv_context(smollm2, before, cache, context)
        gap = float(row[expected[at]] - row[found[at]])
        assert 0 <= gap < 0.1, f"token {at}: {gap}"
        assert at >= 32 or prompt != GREEDY[0]["prompt_ids"], f"the first prompt's text, token {at}"


def test_without_rounded_activations_nothing_is_lost(smollm2: Model, cpu: InferenceContext) -> None:
    """The file's weights and the cache in float32: logits and greedy text are those of transformers in
    float32."""
    golden = np.load(FIXTURES / "smollm2-logits.npz")
    model = with_weights(smollm2, enc.F32, Recode.ALL)
    tokens, prefill = golden["tokens"].tolist(), int(golden["prefill"])
    cache, slot = KvCache.allocate(model, cpu, len(tokens), enc.F32), DecodeSlot()
    rows = [forward_with_kv_context_captured(model, tokens[:prefill], cache, cpu, slot, want=All())]
    rows += [forward_with_kv_context_captured(model, [t], cache, cpu, slot)[None] for t in tokens[prefill:]]
    found = np.concatenate(rows)
    top = np.take_along_axis(found, golden["top_ids"].astype(np.int64), axis=1)
    assert np.abs(top - golden["top_logits"]).max() <= 2e-3
    peak = found.max(1)
    logsumexp = np.log(np.exp(found.astype(np.float64) - peak[:, None]).sum(1)) + peak
    assert np.abs(logsumexp - golden["logsumexp"]).max() <= 2e-3
    for case in GREEDY[:2]:
        assert greedy(model, case["prompt_ids"], 32, cpu, enc.F32) == case["ids"][:32]
