"""Text to token ids and back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ostinato.errors.text import TextNotEncodable, UnknownToken
from ostinato.text import bytelevel, sentencepiece
from ostinato.text.detokenize import StreamDecoder
from ostinato.text.parts import SENTENCEPIECE, Parts, is_failure
from ostinato.text.spaces import SPACE, SpacePrefix
from ostinato.text.special import Span, SpecialTokens, without_surrogates
from ostinato.text.vocabulary import TokenType


class Tokenizer:
    """The tokenizer of one model. Immutable, and safe to share between threads.

    Ids agree with those of llama.cpp (for GGUF files) and of the `tokenizers` library (for Hugging Face
    folders), with one exception on purpose: plain text never becomes a control token or a marker, however
    the vocabulary would merge it.

    Attributes:
        kind: "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE).
        bos_id: the token that begins a sequence, if there is one.
        eos_id: the token that ends a sequence, if there is one.
        end_ids: every token after which generation stops.
        add_bos: whether `encode` puts `bos_id` first.
        add_eos: whether `encode` puts `eos_id` last.
    """

    def __init__(self, parts: Parts) -> None:
        vocabulary = parts.vocabulary
        self.kind = parts.kind
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.end_ids = vocabulary.end_ids
        self.add_bos = parts.add_bos and self.bos_id is not None
        self.add_eos = parts.add_eos and self.eos_id is not None
        self.special = SpecialTokens(vocabulary.markers, vocabulary.literals)
        self._vocabulary = vocabulary
        self._backend = parts.backend
        self._spaces = parts.spaces

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Builds the tokenizer that a GGUF file describes.

        Args:
            metadata: the key-value pairs of the file; strings, numbers, booleans, lists of strings and
                1-D arrays.

        Raises:
            UnsupportedTokenizer: the kind of tokenizer is not one of `gguf.KINDS`.
            UnsupportedPreTokenizer: its way of cutting words is not known.
            TokenizerFormatError: the metadata is incomplete or contradicts itself.
        """
        from ostinato.text import gguf

        return cls(gguf.parts(metadata))

    @classmethod
    def from_hf(cls, folder: str | os.PathLike[str], *, vocab_size: int | None = None) -> Tokenizer:
        """Builds the tokenizer that a Hugging Face model folder describes.

        Reads `tokenizer.json`, or without it `tokenizer.model`; and, as far as they are there,
        `tokenizer_config.json`, `special_tokens_map.json`, `generation_config.json` and `config.json`.

        The files' regular expressions run on the texts given to `encode`. Oniguruma gives up on a match
        after ten million steps, which is a `TextNotEncodable`; below that, hostile expressions can take
        time in proportion to the text's length.

        Args:
            folder: the model folder.
            vocab_size: the rows of the model's embedding; ids up to there that have no token are unused.

        Raises:
            TokenizerFilesMissing: the folder holds neither `tokenizer.json` nor `tokenizer.model`.
            UnsupportedTokenizer: it is neither byte-level BPE nor BPE with byte fallback, or has a part
                that is not known.
            TokenizerFormatError: a file is malformed or contradicts itself.
            ModelFileUnreadable: the operating system refuses a file.
        """
        from ostinato.text.huggingface.load import parts

        return cls(parts(folder, vocab_size))

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return len(self._vocabulary.tokens)

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The token ids of a text.

        Lone surrogates, which no UTF-8 can hold, are read as U+FFFD. Bytes that a vocabulary has no
        token for are dropped, as in llama.cpp; real vocabularies lack only bytes that no text has.

        Args:
            text: any string.
            add_special: put the beginning-of-sequence token first and the end-of-sequence token last,
                as far as the model wants them and the text doesn't already have them there.
            parse_special: read markers such as "<|im_end|>" as their tokens. Only for text from a
                trusted source: without it such text is spelled out like any other.

        Raises:
            TextNotEncodable: the model's own rules gave up on the text.
        """
        return self.encode_partly_trusted(text, (), add_special=add_special, parse_special=parse_special)

    def encode_partly_trusted(
        self, text: str, untrusted: Sequence[Span], *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Like `encode`, with stretches of the text in which markers are spelled out.

        Args:
            text: any string.
            untrusted: `(start, end)` in characters, sorted and disjoint.
            add_special: see `encode`.
            parse_special: see `encode`; for the text outside `untrusted`.
        """
        text = without_surrogates(text)
        pieces = list(self.special.split(text, parse_special=parse_special, untrusted=untrusted))
        ids: list[int] = []
        before: int | None = None  # the token right before the piece
        for index, (piece, token) in enumerate(pieces):
            if token is not None:
                ids.append(token)
            else:
                after = pieces[index + 1][1] if index + 1 < len(pieces) else None
                if piece := self._spaces.stripped(piece, before, after):
                    ids.extend(self._encode_plain(piece, first=index == 0))
            before = token
        if add_special:
            if self._lacks_bos(ids):
                ids.insert(0, self.bos_id)  # type: ignore[arg-type]  # add_bos implies an id
            if self.add_eos and (not ids or ids[-1] != self.eos_id):
                ids.append(self.eos_id)  # type: ignore[arg-type]  # add_eos implies an id
        return ids

    def _lacks_bos(self, ids: Sequence[int]) -> bool:
        # A rendered chat template often begins with the text of this very token.
        return self.add_bos and (not ids or ids[0] != self.bos_id)

    def _encode_plain(self, piece: str, *, first: bool) -> list[int]:
        if self.kind == SENTENCEPIECE:
            piece = self._spaces.prefixed(piece, first=first).replace(" ", SPACE)
        try:
            return self._backend.encode(piece, add_special_tokens=False).ids
        except BaseException as error:
            if is_failure(error):
                raise TextNotEncodable(len(piece), str(error)) from None
            raise

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that a token stands for; not always whole characters.

        Raises:
            UnknownToken: the id is outside the vocabulary.
        """
        vocabulary = self._vocabulary
        if not 0 <= token_id < len(vocabulary.tokens):
            raise UnknownToken(int(token_id), len(vocabulary.tokens))
        if self.kind == SENTENCEPIECE:
            return sentencepiece.token_to_bytes(vocabulary, token_id)
        token = vocabulary.tokens[token_id]
        if vocabulary.types[token_id] in (TokenType.NORMAL, TokenType.BYTE):
            return bytelevel.token_to_bytes(token)
        return token.encode("utf-8", "surrogateescape")

    def is_control(self, token_id: int) -> bool:
        """Whether decoding leaves the token out."""
        return token_id in self._vocabulary.control

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, continuation: bool = False) -> str:
        """The text of token ids. Bytes that form no character become U+FFFD.

        Args:
            ids: token ids.
            skip_special: leave control tokens out.
            continuation: the ids follow earlier text, so a leading space that SentencePiece models have
                at the start of every text is part of it here.

        Raises:
            UnknownToken: an id is outside the vocabulary.
        """
        decoder = self.decoder(skip_special=skip_special, continuation=continuation)
        return "".join([*(decoder.push(int(id)) for id in ids), decoder.finish()])

    def decoder(self, *, skip_special: bool = True, continuation: bool = False) -> StreamDecoder:
        """A decoder for tokens that arrive one by one; the arguments are those of `decode`."""
        return StreamDecoder(
            self.token_bytes,
            skip=self._vocabulary.control if skip_special else frozenset(),
            strip_space=self._spaces.prefix is not SpacePrefix.NEVER and not continuation,
        )
