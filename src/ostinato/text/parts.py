"""What a tokenizer is made of, whichever kind of file described it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ostinato.text.spaces import Spaces
from ostinato.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as TokenizersTokenizer
    from tokenizers.models import BPE

BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"


@dataclasses.dataclass(frozen=True)
class Parts:
    """Everything that `Tokenizer` needs. `backend` merges plain text and knows no special token."""

    kind: str
    vocabulary: Vocabulary
    backend: TokenizersTokenizer
    add_bos: bool
    add_eos: bool
    spaces: Spaces = dataclasses.field(default_factory=Spaces)


def plain_merges(pairs: Iterable[tuple[str, str]], plain: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges among tokens that plain text may produce; those towards others are left out."""
    return [
        (left, right) for left, right in pairs if left + right in plain and left in plain and right in plain
    ]


def byte_pairs(plain: dict[str, int], pairs: list[tuple[str, str]], *, ignore_merges: bool = False) -> BPE:
    """What `plain_merges` of the pairs make. Raises what `tokenizers` does."""
    from tokenizers.models import BPE

    try:  # most files have no other merges, and looking at each takes longer than this
        return BPE(vocab=plain, merges=pairs, ignore_merges=ignore_merges)
    except BaseException as error:
        if not is_failure(error):
            raise
    return BPE(vocab=plain, merges=plain_merges(pairs, plain), ignore_merges=ignore_merges)


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of the `tokenizers` library, which derives from BaseException."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)


def is_failure(error: BaseException) -> bool:
    """Whether `tokenizers` failed, in either of its ways; not an interrupt from outside."""
    return is_panic(error) or (isinstance(error, Exception) and not isinstance(error, MemoryError))
