"""How a Llama-2-style tokenizer.json turns spaces into '▁': with normalizers up to 2024, Metaspace since."""

from __future__ import annotations

import dataclasses

from ostinato.errors.text import UnsupportedTokenizer
from ostinato.text.huggingface.cutting import Stage
from ostinato.text.huggingface.folder import member
from ostinato.text.huggingface.model import KINDS
from ostinato.text.spaces import SPACE, SpacePrefix

_SCHEMES = {"always": SpacePrefix.LACKING, "first": SpacePrefix.FIRST, "never": SpacePrefix.NEVER}


@dataclasses.dataclass(frozen=True)
class Spacing:
    """`split`: words are merged one by one, each with the space before it."""

    prefix: SpacePrefix
    split: bool = False


def recognise(normalizers: list[Stage], pre_tokenizers: list[Stage]) -> Spacing:
    """Finds the rule.

    Raises:
        UnsupportedTokenizer: any step other than those of the two known ways.
        TokenizerFormatError: a step is malformed.
    """
    prefix, replaced = SpacePrefix.NEVER, False
    for stage in normalizers:
        if stage["type"] == "Prepend" and stage.get("prepend") == SPACE and prefix is SpacePrefix.NEVER:
            prefix = SpacePrefix.EACH
        elif stage["type"] == "Replace" and _replaces_spaces(stage) and not replaced:
            replaced = True
        else:
            raise UnsupportedTokenizer(f"BPE with the normalizer {stage['type']!r}", KINDS)
    if replaced and all(map(_cuts_at_spaces, pre_tokenizers)):  # of which none are left
        return Spacing(prefix)
    if not normalizers and len(pre_tokenizers) == 1 and pre_tokenizers[0]["type"] == "Metaspace":
        return _metaspace(pre_tokenizers[0])
    kinds = ", ".join(stage["type"] for stage in (*normalizers, *pre_tokenizers)) or "nothing"
    raise UnsupportedTokenizer(f"BPE with byte fallback, prepared by {kinds}", KINDS)


def _replaces_spaces(stage: Stage) -> bool:
    return stage.get("pattern") == {"String": " "} and stage.get("content") == SPACE


def _cuts_at_spaces(stage: Stage) -> bool:
    return stage["type"] == "Split" and stage.get("pattern") == {"String": " "}


def _metaspace(stage: Stage) -> Spacing:
    where = "pre_tokenizer"
    if member(stage, "replacement", str, SPACE, where) != SPACE:
        raise UnsupportedTokenizer("BPE with another mark for spaces than '▁'", KINDS)
    # "add_prefix_space" is how files up to 2023 say it.
    default = "always" if member(stage, "add_prefix_space", bool, True, where) else "never"
    scheme = member(stage, "prepend_scheme", str, default, where)
    if scheme not in _SCHEMES:
        raise UnsupportedTokenizer(f"BPE with Metaspace's scheme {scheme!r}", KINDS)
    return Spacing(_SCHEMES[scheme], split=member(stage, "split", bool, True, where))
