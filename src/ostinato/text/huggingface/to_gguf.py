"""A Hugging Face tokenizer as GGUF metadata, for converting a model folder into a GGUF file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ostinato.errors.text import TokenizerFilesMissing, TokenizerNotConvertible
from ostinato.text import gguf
from ostinato.text.huggingface import load, sentencepiece_model
from ostinato.text.huggingface.cutting import Stage
from ostinato.text.huggingface.describe import Description, describe
from ostinato.text.huggingface.folder import Folder
from ostinato.text.huggingface.pre_names import merges_reach_every_token, pre_name
from ostinato.text.huggingface.scores import scores
from ostinato.text.huggingface.template import template_source
from ostinato.text.parts import BYTE_LEVEL
from ostinato.text.spaces import SpacePrefix
from ostinato.text.tokenizer import Tokenizer
from ostinato.text.vocabulary import MORE_ENDS

_NONE = 0xFFFFFFFF  # what llama.cpp reads as "no such token"

PROBE = (
    "Hello  world\n\n\n \tdef f(x):\r\n    return x**2 # I'm you'RE 'tis 3.14159 12345 ½Ⅷ٣٤\n"
    "e\u0301 ﬁ Ω \u212a straße İstanbul snake_case XMLHttp 中文字符测试，日本語カタカナ 한국어 ไม่ नमस्ते "
    "мир/у// 👩\u200d👩\u200d👧 🦙🚀🚀 \u00a0\u3000x <|im_end|> </s> <0x0A> ▁▁a Ġb "
    "          x   y  z                    \n"
    "$$\\int_0^\\infty$$ …!!??\x00\x7f\u200b "
)
"""What both tokenizers have to agree on, whole and in its parts."""


def to_gguf_metadata(path: str | os.PathLike[str], *, vocab_size: int | None = None) -> dict[str, Any]:
    """The `tokenizer.*` keys of a GGUF file with this folder's tokenizer and chat template.

    `Tokenizer.from_gguf` makes of them a tokenizer with the same ids. What GGUF has no key for
    (normalisation, markers that swallow spaces) is in keys that begin with "ostinato.tokenizer.".

    Args:
        path: the model folder.
        vocab_size: see `Tokenizer.from_hf`.

    Raises:
        TokenizerNotConvertible: GGUF has no words for what this tokenizer does.
        TokenizerFilesMissing: see `Tokenizer.from_hf`.
        UnsupportedTokenizer: see `Tokenizer.from_hf`.
        TokenizerFormatError: see `Tokenizer.from_hf`.
    """
    folder = Folder(path)
    if folder.has("tokenizer.json"):
        description = describe(folder, vocab_size)
        metadata = _common(description)
        metadata |= (
            _byte_level(description) if description.kind == BYTE_LEVEL else _sentencepiece(description)
        )
        metadata = in_file_widths(metadata)
        check_same_ids(Tokenizer(load.build(description)), Tokenizer.from_gguf(metadata))
    elif folder.has("tokenizer.model"):
        metadata = in_file_widths(sentencepiece_model.metadata(folder, vocab_size))
    else:
        raise TokenizerFilesMissing(str(folder.path), load.FILES)
    template = template_source(path).source
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    return metadata


def in_file_widths(metadata: dict[str, Any]) -> dict[str, Any]:
    """Numbers as GGUF readers want them: ids of unsigned 32 bits, all ones for "none"; lists as arrays, and
    empty ones left out."""

    def value(key: str, given: Any) -> Any:
        if key.endswith("_token_id"):
            return np.uint32(_NONE if given < 0 else given)
        if isinstance(given, list) and given and not isinstance(given[0], str):
            return np.asarray(given, np.float32 if key.endswith(".scores") else np.int32)
        return given

    return {key: value(key, given) for key, given in metadata.items() if given != []}


def check_same_ids(original: Tokenizer, converted: Tokenizer) -> None:
    """The conversion gives the ids of the original."""
    for text in (PROBE, *PROBE.split(" "), *(f" {word}" for word in PROBE.split("\n"))):
        for parse_special in (False, True):
            if original.encode(text, parse_special=parse_special) != converted.encode(
                text, parse_special=parse_special
            ):
                raise TokenizerNotConvertible("ids", f"they would change for {text!r}")
    if original.end_ids != converted.end_ids:
        raise TokenizerNotConvertible("end tokens", f"{original.end_ids} would be {converted.end_ids}")


def _common(description: Description) -> dict[str, Any]:
    vocabulary, named, spaces = description.vocabulary, description.named, description.spaces
    ids = {"bos": named.bos_id, "eos": named.eos_id, "unknown": named.unknown_id}
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": description.kind,
        "tokenizer.ggml.tokens": vocabulary.tokens,
        "tokenizer.ggml.token_type": vocabulary.types,
        # -1 is "none": leaving the key out would mean a default.
        **{f"tokenizer.ggml.{name}_token_id": -1 if id is None else id for name, id in ids.items()},
        "tokenizer.ggml.add_bos_token": named.add_bos,
        "tokenizer.ggml.add_eos_token": named.add_eos,
    }
    # End tokens by their own name where there is room: other readers know these keys.
    others = sorted(named.end_ids - {named.eos_id})
    for name, id in zip(("eot", "eom"), others, strict=False):
        metadata[f"tokenizer.ggml.{name}_token_id"] = id
    lists = {
        MORE_ENDS: others[2:],
        gguf.STRIP_BEFORE: sorted(spaces.strip_before),
        gguf.STRIP_AFTER: sorted(spaces.strip_after),
    }
    return metadata | {key: value for key, value in lists.items() if value}


def _byte_level(description: Description) -> dict[str, Any]:
    plain, model = description.vocabulary.plain, description.model
    name = pre_name(
        description.pre_tokenizers,
        ignore_merges=model.ignore_merges,
        merges_suffice=lambda: merges_reach_every_token(plain, model.merges),
    )
    # A piece with a real space is never spelled in the byte alphabet, so such merges never happen.
    merges = [f"{left} {right}" for left, right in model.merges if " " not in left + right]
    metadata: dict[str, Any] = {"tokenizer.ggml.pre": name, "tokenizer.ggml.merges": merges}
    if description.normalizers:
        metadata[gguf.NORMALIZER] = _normalizer(description.normalizers)
    return metadata


def _normalizer(stages: list[Stage]) -> str:
    kinds = [stage["type"] for stage in stages]
    if len(kinds) != 1 or kinds[0] not in gguf.NORMALIZERS:
        raise TokenizerNotConvertible("normalizer", f"no name for {', '.join(kinds)}")
    name: str = kinds[0]
    return name


def _sentencepiece(description: Description) -> dict[str, Any]:
    if description.split:
        raise TokenizerNotConvertible("way of cutting text", "GGUF merges across words")
    prefix = description.spaces.prefix
    metadata: dict[str, Any] = {
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": scores(description.vocabulary, load.sentencepiece_merges(description)),
        "tokenizer.ggml.add_space_prefix": prefix is not SpacePrefix.NEVER,
    }
    if prefix in (SpacePrefix.LACKING, SpacePrefix.FIRST):
        metadata[gguf.SPACE_PREFIX] = prefix.value
    return metadata
