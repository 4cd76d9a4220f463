"""How a byte-level tokenizer.json changes and cuts text before merging: its normalizer and pre-tokenizer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ostinato.errors.text import TokenizerFormatError, UnsupportedTokenizer
from ostinato.text.huggingface.folder import expect, member
from ostinato.text.huggingface.model import KINDS
from ostinato.text.parts import is_failure

if TYPE_CHECKING:
    from tokenizers import Tokenizer as TokenizersTokenizer

Stage = dict[str, Any]
"""One step as the file writes it; every other key than "type" depends on the type."""

MAX_STAGES = 64
MAX_PATTERN = 16 * 1024
"""The longest regular expression, in characters; real ones stay below 3,000."""
MAX_REPLACEMENT = 64
"""The longest text that a normalizer puts for a match, in characters."""

_NORMALIZERS = frozenset(
    {"NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "Strip", "Replace", "Prepend"}
)
_PRE_TOKENIZERS = frozenset({"ByteLevel", "Split", "Digits", "Punctuation", "UnicodeScripts"})


def stages(description: dict[str, Any], key: str) -> list[Stage]:
    """The steps of "normalizer" or "pre_tokenizer", sequences written out.

    Raises:
        TokenizerFormatError: a step is malformed, or there are too many.
    """
    found: list[Stage] = []
    _flatten(description.get(key), key, found, 0)
    return found


def _flatten(node: Any, key: str, found: list[Stage], depth: int) -> None:
    if node is None:
        return
    node = expect(node, dict, key)
    kind = expect(node.get("type"), str, f"{key}.type")
    if kind != "Sequence":
        found.append(node)
    elif depth < 8:
        for inner in member(node, key.replace("_", "") + "s", list, [], key):
            _flatten(inner, key, found, depth + 1)
    if len(found) > MAX_STAGES or depth >= 8:
        raise TokenizerFormatError(key, f"at most {MAX_STAGES} steps", "more", file="tokenizer.json")


def check_byte_level(normalizers: list[Stage], pre_tokenizers: list[Stage]) -> None:
    """Every step is of a known kind and of a size that can't be used against whoever runs it."""
    for stage in normalizers:
        check_kind(stage["type"], _NORMALIZERS, "normalizer")
        check_length(stage, "content", MAX_REPLACEMENT)
        check_length(stage, "prepend", MAX_REPLACEMENT)
    for stage in pre_tokenizers:
        check_kind(stage["type"], _PRE_TOKENIZERS, "pre-tokenizer")
    for stage in (*normalizers, *pre_tokenizers):
        pattern = stage.get("pattern")
        for key in ("Regex", "String"):
            check_length(pattern if isinstance(pattern, dict) else {}, key, MAX_PATTERN)


def check_kind(kind: str, known: frozenset[str], what: str) -> None:
    """The step is of a kind whose effects are understood."""
    if kind not in known:
        raise UnsupportedTokenizer(f"BPE with the {what} {kind!r}", KINDS)


def check_length(owner: dict[str, Any], key: str, limit: int) -> None:
    """A text inside a step is of a sensible length."""
    value = owner.get(key)
    if isinstance(value, str) and len(value) > limit:
        raise TokenizerFormatError(key, f"at most {limit} characters", f"{len(value)}", file="tokenizer.json")


def install(backend: TokenizersTokenizer, normalizers: list[Stage], pre_tokenizers: list[Stage]) -> None:
    """Gives a `tokenizers` object these steps.

    Raises:
        TokenizerFormatError: the library refuses them.
    """
    from tokenizers import Tokenizer

    description = {
        "version": "1.0",
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    try:
        shell = Tokenizer.from_str(json.dumps(description))
    except BaseException as error:
        if is_failure(error):
            raise refused(error) from None
        raise
    if normalizers:
        backend.normalizer = shell.normalizer
    if pre_tokenizers:
        backend.pre_tokenizer = shell.pre_tokenizer


def refused(error: BaseException) -> TokenizerFormatError:
    """What becomes of an error of the `tokenizers` library while it builds an object."""
    return TokenizerFormatError(
        "the file", "what the tokenizers library takes", str(error), file="tokenizer.json"
    )
