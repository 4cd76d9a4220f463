"""The name that GGUF has for the way a tokenizer.json cuts text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ostinato.errors.text import TokenizerNotConvertible
from ostinato.text.huggingface.cutting import Stage
from ostinato.text.parts import byte_pairs, is_failure
from ostinato.text.pretokenizers import PRE_TOKENIZERS

_GPT2 = PRE_TOKENIZERS["gpt-2"].patterns[0]
_PUNCTUATION = PRE_TOKENIZERS["falcon"].patterns[0]
_PART = "way of cutting text"


def pre_name(stages: list[Stage], *, ignore_merges: bool, merges_suffice: Callable[[], bool]) -> str:
    """The first name in the table whose expressions are the very ones of these steps.

    Args:
        stages: the steps of the pre-tokenizer.
        ignore_merges: whether words that are tokens are taken whole.
        merges_suffice: whether that makes no difference.

    Raises:
        TokenizerNotConvertible: none is, or none with this `ignore_merges`.
    """
    patterns = _patterns(stages)
    same = [name for name, pre in PRE_TOKENIZERS.items() if pre.patterns == patterns]
    exact = [name for name in same if PRE_TOKENIZERS[name].ignore_merges == ignore_merges]
    fitting = exact or (same if same and merges_suffice() else [])
    if not fitting:
        reason = f"no name for {len(stages)} steps: {', '.join(stage['type'] for stage in stages)}"
        if same:
            reason = f"its words are cut like {same[0]!r}, but merged differently"
        raise TokenizerNotConvertible(_PART, reason)
    return fitting[0]


def _patterns(stages: list[Stage]) -> tuple[str, ...]:
    patterns: list[str] = []
    for index, stage in enumerate(stages):
        kind = stage["type"]
        last = index == len(stages) - 1
        if kind == "ByteLevel" and last and not stage.get("add_prefix_space", True):
            if stage.get("use_regex", True):
                patterns.append(_GPT2)
            return tuple(patterns)
        patterns.append(_pattern(stage, alone=index == 0 and len(stages) == 2))
    raise TokenizerNotConvertible(_PART, "it doesn't end with a plain byte alphabet")


def _pattern(stage: Stage, *, alone: bool) -> str:
    """The expression that cuts like one step when its matches are isolated."""
    behavior, inverted = stage.get("behavior"), stage.get("invert", False)
    if stage["type"] == "Digits":
        return r"\p{N}" if stage.get("individual_digits") else r"\p{N}+"
    if stage["type"] == "Punctuation" and behavior == "Contiguous":
        return _PUNCTUATION
    if stage["type"] == "Split":
        pattern: Any = stage.get("pattern")
        expression = pattern.get("Regex") if isinstance(pattern, dict) else None
        isolated = behavior == "Isolated" and not inverted
        # Keeping only matches is the same where everything matches, as it does with expressions that
        # end in any white space after any letter, digit and other character.
        kept = behavior == "Removed" and inverted and alone and str(expression).endswith(r"|\s+")
        if isinstance(expression, str) and (isolated or kept):
            return expression
    raise TokenizerNotConvertible(_PART, f"no name for the step {stage['type']!r} with its settings")


def merges_reach_every_token(plain: dict[str, int], pairs: list[tuple[str, str]]) -> bool:
    """Whether merging the characters of any token gives that token."""
    from tokenizers import Tokenizer

    try:
        backend = Tokenizer(byte_pairs(plain, pairs))
        texts = list(plain)
        encodings = backend.encode_batch(texts, add_special_tokens=False)
    except BaseException as error:
        if is_failure(error):
            return False
        raise
    return all(encoding.ids == [plain[text]] for text, encoding in zip(texts, encodings, strict=True))
