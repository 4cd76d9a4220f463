"""What the tests of `ostinato.text` share: vocabularies, real and made up."""

from __future__ import annotations

import functools
import json
import lzma
from pathlib import Path
from typing import Any

from ostinato.text import Tokenizer
from ostinato.text.bytelevel import BYTE_CHARS

FIXTURES = Path(__file__).parent / "fixtures"


@functools.cache
def fixture(name: str) -> Any:
    """The parsed contents of `fixtures/<name>.json.xz`; not to be changed."""
    with lzma.open(FIXTURES / f"{name}.json.xz", "rt") as file:
        return json.load(file)


@functools.cache
def tokenizer(name: str) -> Tokenizer:
    """The tokenizer of the vocabulary `fixtures/vocab-<name>.json.xz`."""
    return Tokenizer.from_gguf(fixture(f"vocab-{name}")["metadata"])


CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


def bytes_metadata(**changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary: three control tokens, a user-defined word, the bytes, and a few merges."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ hello", "i m", "< |", "| >"]
    tokens = [*CONTROL, "<tool>", *BYTE_CHARS, *(merge.replace(" ", "") for merge in merges)]
    types = [3, 3, 3, 4] + [1] * (len(tokens) - 4)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    changes = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in {**metadata, **changes}.items() if value is not None}


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary in which "<s>" could be merged from "<", "s" and ">"."""
    words = ["▁", "<", "s", ">", "<s", "a", "b", "ab", "▁a", "▁ab"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(n) for n in range(len(words))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    changes = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in {**metadata, **changes}.items() if value is not None}
