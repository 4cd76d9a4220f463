"""A model's files, opened: the model, and how it reads, writes and talks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinato.formats.encodings import ENCODERS
from ostinato.formats.gguf import GgufFile
from ostinato.formats.safetensors import Checkpoint
from ostinato.generate.settings import (
    GENERATION_CONFIG,
    GGUF_SAMPLING,
    Sampling,
    check_choice,
    suggested,
)
from ostinato.ir.encoding import Encoding
from ostinato.models.contract import Family, Model
from ostinato.models.loader import model_from_checkpoint, model_from_gguf
from ostinato.runtime.pack_cache import PackCache
from ostinato.text import Tokenizer
from ostinato.text.huggingface.template import TemplateSource, template_source

ENCODINGS = {encoding.name.lower(): encoding for encoding in ENCODERS}
"""What weights can be quantised to, by the name that a user writes."""


@dataclass(frozen=True)
class Opened:
    """`model` is checked and mapped, nothing of it is read. `tokenizer` and `template` are built when called:
    whether the model fits in memory is asked first."""

    model: Model
    suggested: Sampling
    tokenizer: Callable[[], Tokenizer]
    template: Callable[[Tokenizer], TemplateSource]


def open_model(
    path: Path,
    weights: Encoding | None = None,
    families: Sequence[Family] = (),
    packs: PackCache | None = None,
) -> Opened:
    """Open a GGUF file or a folder with safetensors; raises what `load_model` raises. `packs` keeps packed
    weights for the next process."""
    if path.is_dir():
        with Checkpoint.open(path) as checkpoint:
            model = model_from_checkpoint(checkpoint, weights=weights, families=families, packs=packs)
            return Opened(
                model,
                suggested(checkpoint.generation_config, GENERATION_CONFIG),
                lambda: Tokenizer.from_hf(path, vocab_size=model.config.vocab_size),
                lambda _: template_source(path),
            )
    with GgufFile.open(path) as file:
        metadata: dict[str, Any] = dict(file.metadata)
        return Opened(
            model_from_gguf(file, weights=weights, families=families, packs=packs),
            suggested(metadata, GGUF_SAMPLING),
            lambda: Tokenizer.from_gguf(metadata),
            lambda tokenizer: _gguf_template(metadata, tokenizer),
        )


def encoding_named(field: str, name: str | None) -> Encoding | None:
    """The encoding that the setting `field` names, in any case, or None; raises InvalidSetting for one
    without an encoder."""
    if name is None:
        return None
    check_choice(field, name.lower() if isinstance(name, str) else name, ENCODINGS)
    return ENCODINGS[name.lower()]


def _gguf_template(metadata: dict[str, Any], tokenizer: Tokenizer) -> TemplateSource:
    source = metadata.get("tokenizer.chat_template")
    bos, eos = (_text_of(tokenizer, token) for token in (tokenizer.bos_id, tokenizer.eos_id))
    return TemplateSource(source if isinstance(source, str) and source else None, bos, eos)


def _text_of(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.token_bytes(token).decode("utf-8", "replace")
