"""Hugging Face model folders made from GGUF metadata: the same vocabulary, written the other way."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import tokenizers
from text_corpus import NASTY
from text_support import bytes_metadata, sentencepiece_metadata

from ostinato.text import Tokenizer
from ostinato.text.pretokenizers import PRE_TOKENIZERS

Json = dict[str, Any]

BORDERS = [
    *NASTY,
    "<s>",
    "<s>ab",
    "<s> ab",
    "a<s>b </s>  ab",
    " <s> ",
    "a \n<|im_end|>\u3000\tb<|im_end|>",
    "<|im_start|>  <|im_end|>",
    "<tool> <tool>x",
    "e\u0301 \u212a hello",
    "▁a ▁ a",
]

METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
PREPEND = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}
BYTES_ONLY = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(pattern: str) -> Json:
    """A pre-tokenizer that isolates what the expression matches."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def added_tokens(metadata: Json) -> list[Json]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    types = metadata["tokenizer.ggml.token_type"]
    return [
        {"id": id, "content": text, **flags, "special": types[id] != 4}
        for id, text in enumerate(metadata["tokenizer.ggml.tokens"])
        if types[id] in (2, 3, 4)
    ]


def byte_level_json(metadata: Json) -> Json:
    """The tokenizer.json of a byte-level vocabulary."""
    pre = PRE_TOKENIZERS[metadata["tokenizer.ggml.pre"]]
    added = added_tokens(metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    # The library numbers added tokens that are not in the vocabulary from its end.
    outside = {token["id"] for token in added if token["id"] >= len(tokens) - len(added)}
    model = {
        "type": "BPE",
        "ignore_merges": pre.ignore_merges,
        "vocab": {text: id for id, text in enumerate(tokens) if id not in outside},
        "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
    }
    cuts = [*map(split, pre.patterns), BYTES_ONLY]
    return _json(added, model, None, {"type": "Sequence", "pretokenizers": cuts})


def sentencepiece_json(metadata: Json, *, metaspace: bool = False, by_id: bool = False) -> Json:
    """The tokenizer.json of a SentencePiece vocabulary, its merges in the order of transformers 4 (by
    score) or 5 (by id)."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    vocab = {text: id for id, text in enumerate(tokens)}
    scores = metadata["tokenizer.ggml.scores"]
    mergeable = {text for text, id in vocab.items() if types[id] == 1}
    merges = [
        (-vocab[text] if by_id else scores[vocab[text]], cut, len(text) - cut, text[:cut], text[cut:])
        for text in mergeable
        for cut in range(1, len(text))
        if text[:cut] in mergeable and text[cut:] in mergeable
    ]
    if by_id:  # of equals the shorter left part first, where it is the longer by score
        merges = [(id, -left, -right, *parts) for id, left, right, *parts in merges]
    model = {
        "type": "BPE",
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": vocab,
        "merges": [[left, right] for _, _, _, left, right in sorted(merges, reverse=True)],
    }
    normalizer, pre = (None, METASPACE) if metaspace else (PREPEND, None)
    return _json(added_tokens(metadata), model, normalizer, pre)


def _json(added: list[Json], model: Json, normalizer: Json | None, pre: Json | None) -> Json:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre,
        "post_processor": None,
        "decoder": None,
        "model": model,
    }


def template_processing(first: str | None, last: str | None = None) -> Json:
    """The post-processor that puts tokens around a text."""
    special = [[{"SpecialToken": {"id": text, "type_id": 0}}] if text else [] for text in (first, last)]
    tokens = {text: {"id": text, "ids": [0], "tokens": [text]} for text in (first, last) if text}
    single = [*special[0], {"Sequence": {"id": "A", "type_id": 0}}, *special[1]]
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": tokens}


def config_of(metadata: Json) -> Json:
    """The tokenizer_config.json that names the same tokens."""
    config = {}
    for name in ("bos", "eos"):
        id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if id is not None:
            config[f"{name}_token"] = metadata["tokenizer.ggml.tokens"][id]
    return config


def write_folder(folder: Path, **files: Any) -> Path:
    """Writes files named `<name>.json`; bytes and texts as they are."""
    folder.mkdir(exist_ok=True)
    for name, value in files.items():
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        (folder / f"{name}.json").write_bytes(data)
    return folder


def model_file(metadata: Json, *, trainer: bytes | None = None, normalizer: bytes | None = None) -> bytes:
    """The tokenizer.model of a SentencePiece vocabulary: protocol buffers, written by hand."""
    pieces = zip(
        metadata["tokenizer.ggml.tokens"],
        metadata["tokenizer.ggml.scores"],
        metadata["tokenizer.ggml.token_type"],
        strict=True,
    )
    data = b"".join(
        field(1, field(1, text.encode()) + field(2, float(score)) + field(3, kind))
        for text, score, kind in pieces
    )
    ids = field(40, 0) + field(41, 1) + field(42, 2)
    data += field(2, field(3, 2) + field(35, 1) + ids if trainer is None else trainer)
    plain = field(1, b"identity") + field(2, b"") + field(3, 1) + field(4, 0) + field(5, 1)
    return data + field(3, plain if normalizer is None else normalizer)


def field(number: int, value: int | float | bytes) -> bytes:
    """One field of a protocol buffer."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    data = b""
    while value > 0x7F:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def bytes_json(**changes: Any) -> Json:
    """The small byte-level vocabulary."""
    return {**byte_level_json(bytes_metadata()), **changes}


def pieces_json(**changes: Any) -> Json:
    """The small SentencePiece vocabulary."""
    return {**sentencepiece_json(sentencepiece_metadata()), **changes}


def folder_tokenizer(folder: Path, description: Json, **files: Any) -> Tokenizer:
    """The tokenizer of a folder with these files."""
    return Tokenizer.from_hf(write_folder(folder, tokenizer=description, **files))


def check_like_library(made: Tokenizer, description: Json) -> None:
    """The ids are those that `tokenizers` gives with the same tokenizer.json."""
    library = tokenizers.Tokenizer.from_str(json.dumps(description))
    for text in BORDERS:
        ids = made.encode(text, add_special=False, parse_special=True)
        assert ids == library.encode(text, add_special_tokens=False).ids, text
