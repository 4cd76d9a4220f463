"""Which tokens begin and end a sequence, and which of them `encode` puts there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ostinato.errors.text import TokenizerFormatError, UnsupportedTokenizer
from ostinato.text.huggingface.folder import Folder, expect, member
from ostinato.text.huggingface.model import KINDS

_CONFIG, _MAP = "tokenizer_config.json", "special_tokens_map.json"
_MODEL_CONFIGS = ("generation_config.json", "config.json")


@dataclasses.dataclass(frozen=True)
class NamedTokens:
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    end_ids: frozenset[int]  # besides `eos_id`
    add_bos: bool
    add_eos: bool


def token_text(folder: Folder, name: str) -> str | None:
    """The text of the token `name` ("bos_token"), or None where the folder names none."""
    for file in (_CONFIG, _MAP):
        value = folder.json(file).get(name)
        if isinstance(value, dict):  # an AddedToken written out
            value = value.get("content")
        if value is not None:
            return expect(value, str, name, file)
    return None


def find(
    folder: Folder, ids: Mapping[str, int], unknown: str | None, *, add_bos: bool = False
) -> NamedTokens:
    """Collects the named tokens.

    What `encode` adds is what the post-processor of tokenizer.json does, unless tokenizer_config.json
    says `add_bos_token` or `add_eos_token`.

    Args:
        folder: the model folder.
        ids: every token by its text.
        unknown: what the model itself names as the unknown token.
        add_bos: whether bos is put first where nothing says so.

    Raises:
        UnsupportedTokenizer: the post-processor adds other tokens than one at the beginning and end.
        TokenizerFormatError: a name or id is of the wrong type or outside the vocabulary.
    """
    n_ids = max(ids.values(), default=-1) + 1
    bos, eos, unk = (_id(folder, f"{name}_token", ids) for name in ("bos", "eos", "unk"))
    first, last = _processed(folder, ids)
    ends = _model_ids(folder, "eos_token_id", n_ids)
    bos = bos if bos is not None else first
    eos = eos if eos is not None else last
    bos = bos if bos is not None else next(iter(_model_ids(folder, "bos_token_id", n_ids)), None)
    eos = eos if eos is not None else next(iter(ends), None)
    config = folder.json(_CONFIG)
    adds_bos = member(config, "add_bos_token", bool, add_bos or first is not None, "", _CONFIG)
    adds_eos = member(config, "add_eos_token", bool, last is not None, "", _CONFIG)
    for wanted, what, named, explicit in ((first, "begins", bos, adds_bos), (last, "ends", eos, adds_eos)):
        if wanted is not None and explicit and wanted != named:
            raise UnsupportedTokenizer(f"one that {what} a text with a token that it doesn't name so", KINDS)
    return NamedTokens(
        bos_id=bos,
        eos_id=eos,
        unknown_id=ids.get(unknown) if unknown is not None else unk,
        end_ids=frozenset(ends),
        add_bos=adds_bos,
        add_eos=adds_eos,
    )


def _id(folder: Folder, name: str, ids: Mapping[str, int]) -> int | None:
    text = token_text(folder, name)
    return None if text is None else ids.get(text)


def _model_ids(folder: Folder, key: str, n_ids: int) -> list[int]:
    for file in _MODEL_CONFIGS:
        value = folder.json(file).get(key)
        if value is not None:
            values = value if isinstance(value, list) else [value]
            # Some files name ids that the tokenizer has no token for; nothing can produce these.
            return [id for id in (expect(item, int, key, file) for item in values) if 0 <= id < n_ids]
    return []


def _processed(folder: Folder, ids: Mapping[str, int]) -> tuple[int | None, int | None]:
    """The tokens that the post-processor puts before and after a text."""
    before, after = _around(folder.json("tokenizer.json").get("post_processor"), ids, 0)
    if len(before) > 1 or len(after) > 1:
        raise UnsupportedTokenizer("one that puts several tokens around a text", KINDS)
    return next(iter(before), None), next(iter(after), None)


def _around(processor: Any, ids: Mapping[str, int], depth: int) -> tuple[list[int], list[int]]:
    if processor is None:
        return [], []
    processor = expect(processor, dict, "post_processor")
    kind = member(processor, "type", str, "", "post_processor")
    if kind == "ByteLevel":
        return [], []
    if kind == "Sequence" and depth < 4:
        before: list[int] = []
        after: list[int] = []
        for inner in member(processor, "processors", list, [], "post_processor"):
            outer_before, outer_after = _around(inner, ids, depth + 1)
            before, after = outer_before + before, after + outer_after
        return before, after
    if kind in ("BertProcessing", "RobertaProcessing"):
        return [_pair(processor, "cls", ids)], [_pair(processor, "sep", ids)]
    if kind == "TemplateProcessing":
        return _template(processor, ids)
    raise UnsupportedTokenizer(f"one with the post-processor {kind!r}", KINDS)


def _pair(processor: dict[str, Any], name: str, ids: Mapping[str, int]) -> int:
    pair = member(processor, name, list, [], "post_processor")
    return _known(pair[0] if pair else None, ids)


def _template(processor: dict[str, Any], ids: Mapping[str, int]) -> tuple[list[int], list[int]]:
    before: list[int] = []
    after: list[int] = []
    seen_text = False
    for piece in member(processor, "single", list, [], "post_processor"):
        piece = expect(piece, dict, "post_processor.single")
        if "Sequence" in piece:
            seen_text = True
            continue
        special = expect(piece.get("SpecialToken"), dict, "post_processor.single")
        (after if seen_text else before).append(_known(special.get("id"), ids))
    return before, after


def _known(text: Any, ids: Mapping[str, int]) -> int:
    text = expect(text, str, "post_processor")
    if text not in ids:
        raise TokenizerFormatError(
            "post_processor", "a token of the vocabulary", repr(text), file="tokenizer.json"
        )
    return ids[text]
