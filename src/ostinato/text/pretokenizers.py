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
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
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
_SEED_CODER = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
# The letters of scripts with case, as DeepSeek's first tokenizer listed them.
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼ"
    "ιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_DIGITS_GPT2 = (r"\p{N}", _GPT2)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


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
