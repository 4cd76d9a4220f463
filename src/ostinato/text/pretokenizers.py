r"""How byte-level BPE models cut text into words before merging, by `tokenizer.ggml.pre`.

Each entry is a list of regular expressions (Oniguruma syntax). They are applied one after the other: each
cuts the pieces that its predecessor left, every match and every gap between matches becoming a piece.

Names and groups are those of llama.cpp (`src/llama-vocab.cpp`); where it had to adapt an expression to
std::regex, the one of the model's original `tokenizer.json` stands here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ostinato.errors.text import UnsupportedPreTokenizer

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer as TokenizersPreTokenizer


@dataclasses.dataclass(frozen=True)
class PreTokenizer:
    """One way of cutting text into words, with the defaults that llama.cpp ties to its name."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token is that token, whatever its merges would give
    add_bos: bool = False  # the default of `tokenizer.ggml.add_bos_token`

    def build(self) -> TokenizersPreTokenizer:
        """The `tokenizers` object: the cuts, then the byte alphabet."""
        from tokenizers import Regex, pre_tokenizers

        # `tokenizers` ships no usable annotations for these constructors.
        pieces: list[Any] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns
        ]
        pieces.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(pieces)


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_SEED_CODER = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
# The letters of scripts with case, as DeepSeek's first tokenizer listed them.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-"
    "\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-"
    "\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf"
    "\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-"
    "\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e"
    "\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-"
    "\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-"
    "\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}",
)
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_DIGITS_GPT2 = (r"\p{N}", _GPT2)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


def _table() -> dict[str, PreTokenizer]:
    rows: list[tuple[str, PreTokenizer]] = [
        ("default", PreTokenizer(_DEFAULT)),
        (
            "gpt-2 phi-2 mpt olmo jais trillion granite-docling jina-es jina-de jina-v1-en jina-v2-code "
            "jina-v2-de jina-v2-es roberta-bpe gigachat a.x-4.0 mellum modern-bert exaone4",
            PreTokenizer((_GPT2,)),
        ),
        (
            "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
            PreTokenizer(_DIGITS_GPT2),
        ),
        (
            "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
            PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
        ),
        ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((_LLAMA3,))),
        ("glm4 glm5", PreTokenizer((_LLAMA3,), ignore_merges=True)),
        (
            "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
            PreTokenizer((_QWEN2,)),
        ),
        ("qwen35", PreTokenizer((_QWEN35,))),
        ("deepseek-llm", PreTokenizer(_DEEPSEEK_LLM)),
        ("deepseek-coder", PreTokenizer(_DEEPSEEK_CODER)),
        ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", PreTokenizer(_DEEPSEEK3)),
        ("falcon", PreTokenizer(_FALCON)),
        ("tekken", PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True)),
        ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((_GPT4O,))),
        ("seed-coder", PreTokenizer((_SEED_CODER,))),
        ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,))),
        ("bloom poro-chat gpt3-finnish", PreTokenizer((_BLOOM,))),
        ("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
    ]
    return {name: pre for names, pre in rows for name in names.split()}


PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(_table())
"""Every pre-tokenizer known, by its name in the metadata."""


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of that name.

    A file without a name gets "default", as in llama.cpp.

    Raises:
        UnsupportedPreTokenizer: the name is not in the table. A guess would degrade every answer silently.
    """
    found = PRE_TOKENIZERS.get(name or "default")
    if found is None:
        raise UnsupportedPreTokenizer(name, tuple(sorted(PRE_TOKENIZERS)))
    return found
