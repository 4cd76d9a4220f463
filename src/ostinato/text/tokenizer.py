"""Text to token ids and back, from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ostinato.errors.text import TokenizerFormatError, UnknownToken, UnsupportedTokenizer
from ostinato.text import bytelevel, sentencepiece
from ostinato.text.detokenize import StreamDecoder
from ostinato.text.pretokenizers import pre_tokenizer
from ostinato.text.special import Span, SpecialTokens
from ostinato.text.vocabulary import TokenType, Vocabulary, flag, string, string_list

if TYPE_CHECKING:
    from tokenizers import Tokenizer as TokenizersTokenizer

KINDS = ("gpt2", "llama")
"""The values of `tokenizer.ggml.model` that are known: byte-level BPE and SentencePiece BPE."""


class Tokenizer:
    """The tokenizer of one model. Immutable, and safe to share between threads.

    Ids agree with those of llama.cpp, with one exception on purpose: plain text never becomes a control
    token or a marker, however the vocabulary would merge it.

    Attributes:
        kind: "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE).
        bos_id: the token that begins a sequence, if there is one.
        eos_id: the token that ends a sequence, if there is one.
        end_ids: every token after which generation stops.
        add_bos: whether `encode` puts `bos_id` first.
        add_eos: whether `encode` puts `eos_id` last.
    """

    def __init__(
        self,
        kind: str,
        vocabulary: Vocabulary,
        backend: TokenizersTokenizer,
        *,
        add_bos: bool,
        add_eos: bool,
        space_prefix: bool = False,
        strip_after: frozenset[int] = frozenset(),
    ) -> None:
        self.kind = kind
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.end_ids = vocabulary.end_ids
        self.add_bos = add_bos and self.bos_id is not None
        self.add_eos = add_eos and self.eos_id is not None
        self.special = SpecialTokens(vocabulary.markers, vocabulary.literals)
        self._vocabulary = vocabulary
        self._backend = backend
        self._space_prefix = space_prefix
        self._strip_after = strip_after

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Builds the tokenizer that a model file describes.

        Args:
            metadata: the key-value pairs of the file; strings, numbers, booleans, lists of strings and
                1-D arrays.

        Raises:
            UnsupportedTokenizer: the kind of tokenizer is not one of `KINDS`.
            UnsupportedPreTokenizer: its way of cutting words is not known.
            TokenizerFormatError: the metadata is incomplete or contradicts itself.
        """
        if "tokenizer.ggml.model" not in metadata:
            raise TokenizerFormatError("tokenizer.ggml.model", "a kind of tokenizer", "nothing")
        kind = string(metadata, "tokenizer.ggml.model", "")
        if kind == "gpt2":
            return cls._byte_level(metadata)
        if kind == "llama":
            return cls._sentencepiece(metadata)
        raise UnsupportedTokenizer(kind, KINDS)

    @classmethod
    def _byte_level(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        from tokenizers import Tokenizer as Backend
        from tokenizers import models

        pre = pre_tokenizer(string(metadata, "tokenizer.ggml.pre", ""))
        vocabulary = Vocabulary.from_gguf(metadata, default_ids={})
        plain = vocabulary.plain
        merges = []
        for merge in string_list(metadata, "tokenizer.ggml.merges"):
            left, space, right = merge.partition(" ")
            if not space:
                raise TokenizerFormatError("tokenizer.ggml.merges", "two tokens a merge", repr(merge))
            # Merges towards tokens that plain text may not produce are left out with them.
            if left + right in plain and left in plain and right in plain:
                merges.append((left, right))
        backend = Backend(models.BPE(vocab=plain, merges=merges, ignore_merges=pre.ignore_merges))
        backend.pre_tokenizer = pre.build()
        return cls(
            "gpt2",
            vocabulary,
            backend,
            add_bos=flag(metadata, "tokenizer.ggml.add_bos_token", pre.add_bos),
            add_eos=flag(metadata, "tokenizer.ggml.add_eos_token", False),
        )

    @classmethod
    def _sentencepiece(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        vocabulary = Vocabulary.from_gguf(
            metadata, default_ids={"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
        )
        if vocabulary.scores is None:
            raise TokenizerFormatError("tokenizer.ggml.scores", "one score a token", "nothing")
        plain, unknown = dict(vocabulary.plain), None
        if vocabulary.unknown_id is not None:
            unknown = without_surrogates(vocabulary.tokens[vocabulary.unknown_id])
            plain[unknown] = vocabulary.unknown_id
        backend = sentencepiece.build(plain, sentencepiece.merges_by_score(vocabulary), unknown)
        return cls(
            "llama",
            vocabulary,
            backend,
            add_bos=flag(metadata, "tokenizer.ggml.add_bos_token", True),
            add_eos=flag(metadata, "tokenizer.ggml.add_eos_token", False),
            space_prefix=flag(metadata, "tokenizer.ggml.add_space_prefix", True),
            strip_after=_strip_after(metadata, vocabulary),
        )

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
        ids: list[int] = []
        after_special, strip = True, False
        for piece, token in self.special.split(text, parse_special=parse_special, untrusted=untrusted):
            if token is not None:
                ids.append(token)
                after_special, strip = True, token in self._strip_after
                continue
            if strip:
                piece = piece.lstrip(" \t\n\r\v\f")
            if piece:
                ids.extend(self._encode_plain(piece, after_special))
            after_special, strip = False, False
        if add_special:
            if self._lacks_bos(ids):
                ids.insert(0, self.bos_id)  # type: ignore[arg-type]  # add_bos implies an id
            if self.add_eos and (not ids or ids[-1] != self.eos_id):
                ids.append(self.eos_id)  # type: ignore[arg-type]  # add_eos implies an id
        return ids

    def _lacks_bos(self, ids: Sequence[int]) -> bool:
        # A rendered chat template often begins with the text of this very token.
        return self.add_bos and (not ids or ids[0] != self.bos_id)

    def _encode_plain(self, piece: str, after_special: bool) -> list[int]:
        if self.kind == "llama":
            if self._space_prefix and after_special:
                piece = " " + piece
            piece = piece.replace(" ", sentencepiece.SPACE)
        return self._backend.encode(piece, add_special_tokens=False).ids

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that a token stands for; not always whole characters.

        Raises:
            UnknownToken: the id is outside the vocabulary.
        """
        vocabulary = self._vocabulary
        if not 0 <= token_id < len(vocabulary.tokens):
            raise UnknownToken(int(token_id), len(vocabulary.tokens))
        if self.kind == "llama":
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
            strip_space=self._space_prefix and not continuation,
        )


def without_surrogates(text: str) -> str:
    """The text with every surrogate, which UTF-8 can't hold, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # One for one, so that positions in the text stay what they were.
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    return text


def _strip_after(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> frozenset[int]:
    """The markers after which white space is dropped.

    GGUF doesn't say; Phi-3 is the one SentencePiece family whose markers do (llama.cpp knows it by its
    name too). Its "<s>", "<unk>" and "<|endoftext|>" are the exceptions.
    """
    name = string(metadata, "general.name", "").lower()
    if string(metadata, "general.architecture", "") != "phi3" and not ("phi-3" in name or "phi3" in name):
        return frozenset()
    plain_markers = ("<s>", "<unk>", "<|endoftext|>")
    return frozenset(id for text, id in vocabulary.markers.items() if text not in plain_markers)
