"""The real default model against transformers in float32 loading the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.want import All, Argmax
from ostinato.formats.gguf import GgufFile
from ostinato.models.contract import Model
from ostinato.runtime.context import InferenceContext
from ostinato.text import Tokenizer

pytestmark = pytest.mark.model
GREEDY = json.loads((Path(__file__).parent.parent / "fixtures" / "smollm2-greedy.json").read_text("utf-8"))
OPENING = (
    " there was a wise old wizard named Thorold. He lived in a tower surrounded by a beautiful garden filled "
    "with all sorts of magical creatures."
)


def test_logits(smollm2: Model, context: InferenceContext, fixtures: Path) -> None:
    """Prefill positions and eight decode steps: the 64 largest logits and the logsumexp of each position."""
    golden = np.load(fixtures / "smollm2-logits.npz")
    tokens, prefill = golden["tokens"].tolist(), int(golden["prefill"])
    assert len(tokens) - prefill == 8
    cache = KvCache.allocate(smollm2, context, len(tokens))
    got = [forward_with_kv_context(smollm2, tokens[:prefill], cache, context, want=All())]
    got += [forward_with_kv_context(smollm2, [token], cache, context)[None] for token in tokens[prefill:]]
    logits = np.concatenate(got)
    pieces = KvCache.allocate(smollm2, context, len(tokens))
    again = []
    for count in (17, 3, prefill - 20, 8):
        part = tokens[pieces.length : pieces.length + count]
        again.append(forward_with_kv_context(smollm2, part, pieces, context, want=All()))
    np.testing.assert_allclose(np.concatenate(again), logits, atol=1e-4, rtol=0)
    top = np.take_along_axis(logits, golden["top_ids"].astype(np.int64), axis=1)
    assert np.abs(top - golden["top_logits"]).max() <= 2e-3
    peak = logits.max(1)
    logsumexp = np.log(np.exp(logits.astype(np.float64) - peak[:, None]).sum(1)) + peak
    assert np.abs(logsumexp - golden["logsumexp"]).max() <= 2e-3
    # the same tokens are the largest
    order = np.argpartition(-logits, 64, axis=1)[:, :64]
    overlap = [len(set(mine) & set(theirs)) for mine, theirs in zip(order, golden["top_ids"], strict=True)]
    assert min(overlap) >= 63


@pytest.mark.parametrize("case", GREEDY, ids=[case["prompt"][:24] for case in GREEDY])
def test_each_greedy_token_follows_those_before_it(
    smollm2: Model, context: InferenceContext, case: dict[str, Any]
) -> None:
    """64 tokens, each the likeliest after the prompt and the ones before it: all in one call."""
    prompt, ids = case["prompt_ids"], case["ids"]
    assert len(ids) == 64
    cache = KvCache.allocate(smollm2, context, len(prompt) + len(ids))
    logits = forward_with_kv_context(smollm2, [*prompt, *ids[:-1]], cache, context, want=All())
    assert logits[len(prompt) - 1 :].argmax(1).tolist() == ids


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] if at else [], id=case["prompt"][:24])
     for at, case in enumerate(GREEDY)],
)  # fmt: skip
def test_greedy_text(
    smollm2: Model, context: InferenceContext, smollm2_path: Path, case: dict[str, object]
) -> None:
    """64 tokens, each equal, one after another; by default of one prompt."""
    with GgufFile.open(smollm2_path) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata)
    prompt = tokenizer.encode(str(case["prompt"]))
    assert prompt == case["prompt_ids"]
    cache = KvCache.allocate(smollm2, context, len(prompt) + 64)
    ids = [forward_with_kv_context(smollm2, prompt, cache, context, want=Argmax())]
    while len(ids) < 64:
        ids.append(forward_with_kv_context(smollm2, [ids[-1]], cache, context, want=Argmax()))
    assert ids == case["ids"]
    if str(case["prompt"]).startswith("Once upon a time"):
        assert tokenizer.decode(ids, continuation=True).startswith(OPENING)
