"""The parts of a tokenizer from a Hugging Face model folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ostinato.errors.base import OstinatoError
from ostinato.errors.text import TokenizerFilesMissing
from ostinato.text import gguf, sentencepiece
from ostinato.text.huggingface import cutting, sentencepiece_model
from ostinato.text.huggingface.describe import Description, describe
from ostinato.text.huggingface.folder import Folder
from ostinato.text.parts import BYTE_LEVEL, Parts, byte_pairs, is_failure, plain_merges
from ostinato.text.spaces import SPACE
from ostinato.text.vocabulary import TokenType

if TYPE_CHECKING:
    from tokenizers import Tokenizer as TokenizersTokenizer

FILES = ("tokenizer.json", "tokenizer.model")


def parts(path: str | os.PathLike[str], vocab_size: int | None) -> Parts:
    """See `Tokenizer.from_hf`."""
    folder = Folder(path)
    if folder.has("tokenizer.json"):
        return build(describe(folder, vocab_size))
    if folder.has("tokenizer.model"):
        return gguf.parts(sentencepiece_model.metadata(folder, vocab_size))
    raise TokenizerFilesMissing(str(folder.path), FILES)


def build(description: Description) -> Parts:
    """Makes the `tokenizers` object, of plain tokens only.

    Raises:
        TokenizerFormatError: the library refuses what the files say.
    """
    try:
        backend = _byte_level(description) if description.kind == BYTE_LEVEL else _sentencepiece(description)
    except BaseException as error:
        if is_failure(error) and not isinstance(error, OstinatoError):
            raise cutting.refused(error) from None
        raise
    return Parts(
        description.kind,
        description.vocabulary,
        backend,
        add_bos=description.named.add_bos,
        add_eos=description.named.add_eos,
        spaces=description.spaces,
    )


def _byte_level(description: Description) -> TokenizersTokenizer:
    from tokenizers import Tokenizer

    model = description.model
    bpe = byte_pairs(description.vocabulary.plain, model.merges, ignore_merges=model.ignore_merges)
    backend = Tokenizer(bpe)
    cutting.install(backend, description.normalizers, description.pre_tokenizers)
    return backend


def _sentencepiece(description: Description) -> TokenizersTokenizer:
    backend = sentencepiece.build(
        description.vocabulary,
        sentencepiece_merges(description),
        fuse_unknown=description.model.fuse_unknown,
    )
    if description.split:
        words = {"type": "Split", "pattern": {"String": SPACE}, "behavior": "MergedWithNext", "invert": False}
        cutting.install(backend, [], [words])
    return backend


def sentencepiece_merges(description: Description) -> list[tuple[str, str]]:
    """The merges of a SentencePiece tokenizer; a byte token stands for its byte, not for "<0x0A>"."""
    vocabulary = description.vocabulary
    spelled = {text: id for text, id in vocabulary.plain.items() if vocabulary.types[id] != TokenType.BYTE}
    return plain_merges(description.model.merges, spelled)
