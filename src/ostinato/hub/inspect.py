"""What a model file says about itself."""

from __future__ import annotations

import dataclasses
import math
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinato.formats.gguf import GgufFile, Metadata
from ostinato.formats.safetensors import Checkpoint, read_config

_TEMPLATE_LINES = 3
_WIDTH = 160  # characters of a line or a label that are shown


@dataclass(frozen=True, slots=True)
class EncodingUse:
    """How much of a model is stored in one encoding; `bytes` without the padding between tensors."""

    name: str
    tensors: int
    parameters: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TokenizerReport:
    """The tokenizer: ggml's `kind` ("gpt2": byte-level BPE, "llama": SentencePiece) and its `pre` split."""

    kind: str | None
    pre: str | None
    vocabulary: int | None
    bos_id: int | None
    eos_id: int | None
    add_bos: bool | None


@dataclass(frozen=True, slots=True)
class ModelReport:
    """A model file's own account. What the file leaves out is None; sizes are bytes.

    `heads`, `kv_heads` and `feed_forward` are one number, or one a layer where the layers differ.
    `chat_template` is the start of the template's text, None when there is none.
    """

    path: str
    file_size: int
    format: str
    architecture: str | None
    name: str | None
    parameters: int
    encodings: tuple[EncodingUse, ...]
    layers: int | None
    hidden: int | None
    heads: int | tuple[int, ...] | None
    kv_heads: int | tuple[int, ...] | None
    feed_forward: int | tuple[int, ...] | None
    context_length: int | None
    rope_base: float | None
    tokenizer: TokenizerReport
    chat_template: str | None
    licence: str | None
    source: str | None

    @property
    def bits_per_parameter(self) -> float:
        """Stored bits per parameter over all tensors, scales included; 0 for a file without tensors."""
        stored = sum(use.bytes for use in self.encodings)
        return stored * 8 / self.parameters if self.parameters else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {**dataclasses.asdict(self), "bits_per_parameter": round(self.bits_per_parameter, 3)}


def inspect_model(path: str | os.PathLike[str]) -> ModelReport:
    """Reads the headers of the GGUF file or safetensors folder at `path`; no tensor data is touched.

    Keys: the GGUF specification, "Standardized key-value pairs"; config.json as transformers writes it.
    Raises `ModelFormatError` for a file that is not one, `OSError` when it cannot be read.
    """
    path = Path(path).absolute()
    if path.is_dir():
        with Checkpoint.open(path) as checkpoint:
            return _report_of_folder(path, checkpoint)
    with GgufFile.open(path) as file:
        return _report(path, file)


def _report(path: Path, file: GgufFile) -> ModelReport:
    meta = file.metadata
    architecture = _label(meta, "general.architecture")
    prefix = architecture or ""
    encodings = _encodings([(t.encoding.name, t.shape, t.nbytes) for t in file.tensors.values()])
    template = _text(meta, "tokenizer.chat_template")
    return ModelReport(
        path=str(path),
        file_size=file.nbytes,
        format=f"GGUF {file.version}",
        architecture=architecture,
        name=_label(meta, "general.name"),
        parameters=sum(use.parameters for use in encodings),
        encodings=encodings,
        layers=_integer(meta, f"{prefix}.block_count"),
        hidden=_integer(meta, f"{prefix}.embedding_length"),
        heads=_per_layer(meta, f"{prefix}.attention.head_count"),
        kv_heads=_per_layer(meta, f"{prefix}.attention.head_count_kv"),
        feed_forward=_per_layer(meta, f"{prefix}.feed_forward_length"),
        context_length=_integer(meta, f"{prefix}.context_length"),
        rope_base=_number(meta, f"{prefix}.rope.freq_base"),
        tokenizer=_tokenizer(meta),
        chat_template=None if template is None else _beginning(template),
        licence=_label(meta, "general.license"),
        source=_source(meta),
    )


def _report_of_folder(path: Path, checkpoint: Checkpoint) -> ModelReport:
    config = checkpoint.config
    tensors = list(checkpoint.tensors.values())
    encodings = _encodings([(t.dtype, t.shape, t.nbytes) for t in tensors])
    names = config.get("architectures")
    architecture = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
    tokenizers = [name for name in ("tokenizer.json", "tokenizer.model") if checkpoint.text_file(name)]
    template = _template_of_folder(checkpoint)
    rope = config.get("rope_parameters")
    return ModelReport(
        path=str(path),
        file_size=sum(file.stat().st_size for file in {tensor.file for tensor in tensors}),
        format="safetensors",
        architecture=None if architecture is None else _printable(_clipped(architecture)),
        name=_label(config, "_name_or_path") or path.name,
        parameters=sum(use.parameters for use in encodings),
        encodings=encodings,
        layers=_integer(config, "num_hidden_layers"),
        hidden=_integer(config, "hidden_size"),
        heads=_integer(config, "num_attention_heads"),
        kv_heads=_integer(config, "num_key_value_heads"),
        feed_forward=_integer(config, "intermediate_size"),
        context_length=_integer(config, "max_position_embeddings"),
        rope_base=_number(rope if isinstance(rope, dict) else config, "rope_theta"),
        tokenizer=TokenizerReport(
            kind=tokenizers[0] if tokenizers else None,
            pre=None,
            vocabulary=_integer(config, "vocab_size"),
            bos_id=_integer(config, "bos_token_id"),
            eos_id=_integer(config, "eos_token_id"),
            add_bos=None,
        ),
        chat_template=None if template is None else _beginning(_printable(template)),
        licence=None,
        source=None,
    )


def _template_of_folder(checkpoint: Checkpoint) -> str | None:
    """The text of its own file, else what the tokenizer's settings hold."""
    if (file := checkpoint.text_file("chat_template.jinja")) is not None:
        return file.read_text("utf-8", "replace")
    settings = checkpoint.text_file("tokenizer_config.json")
    template = None if settings is None else read_config(settings).get("chat_template")
    return template if isinstance(template, str) else None


def _encodings(tensors: list[tuple[str, tuple[int, ...], int]]) -> tuple[EncodingUse, ...]:
    """One entry an encoding, the one with the most bytes first."""
    groups: dict[str, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
    for name, shape, nbytes in tensors:
        groups[name].append((shape, nbytes))
    uses = [
        EncodingUse(
            name=name,
            tensors=len(group),
            parameters=sum(math.prod(shape) for shape, _ in group),
            bytes=sum(nbytes for _, nbytes in group),
        )
        for name, group in groups.items()
    ]
    return tuple(sorted(uses, key=lambda use: (-use.bytes, use.name)))


def _tokenizer(meta: Metadata) -> TokenizerReport:
    tokens = meta.get("tokenizer.ggml.tokens")
    add_bos = meta.get("tokenizer.ggml.add_bos_token")
    return TokenizerReport(
        kind=_label(meta, "tokenizer.ggml.model"),
        pre=_label(meta, "tokenizer.ggml.pre"),
        vocabulary=len(tokens) if isinstance(tokens, list) else None,
        bos_id=_integer(meta, "tokenizer.ggml.bos_token_id"),
        eos_id=_integer(meta, "tokenizer.ggml.eos_token_id"),
        add_bos=add_bos if isinstance(add_bos, bool) else None,
    )


def _source(meta: Metadata) -> str | None:
    """Where the file says it comes from: the closest of the addresses it names, else who made it."""
    keys = ("general.source.url", "general.repo_url", "general.source.repo_url", "general.url")
    for key in (*keys, "general.organization", "general.author"):
        if value := _label(meta, key):
            return value
    return None


def _beginning(template: str) -> str:
    """The first lines of a chat template: enough to recognise it."""
    lines = [line.strip() for line in template.splitlines() if line.strip()]
    shown = [_clipped(line) for line in lines[:_TEMPLATE_LINES]]
    return "\n".join(shown + ["..."] * (len(lines) > _TEMPLATE_LINES))


# A report must come out of any readable file: a value of an unexpected type is left out, not an error.


def _text(meta: Mapping[str, Any], key: str) -> str | None:
    value = meta.get(key)
    return _printable(value) if isinstance(value, str) else None


def _integer(meta: Mapping[str, Any], key: str) -> int | None:
    value = meta.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(meta: Mapping[str, Any], key: str) -> float | None:
    value = meta.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _per_layer(meta: Metadata, key: str) -> int | tuple[int, ...] | None:
    """One number, or a tuple of one a layer; a file that repeats the same number says it once."""
    value = meta.get(key)
    if value is None or isinstance(value, str | bool | float | list):
        return None
    if isinstance(value, int):
        return value
    if value.dtype.kind not in "iu" or value.size == 0:
        return None
    numbers = tuple(int(number) for number in value)
    return numbers[0] if len(set(numbers)) == 1 else numbers


def _label(meta: Mapping[str, Any], key: str) -> str | None:
    """A text that should be one short line."""
    value = _text(meta, key)
    return None if value is None else _clipped(" ".join(value.split()))


def _clipped(line: str) -> str:
    return line if len(line) <= _WIDTH else line[:_WIDTH] + "..."


def _printable(text: str) -> str:
    """`text` without what a stranger's file could do to a terminal: escapes, lone surrogates."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
