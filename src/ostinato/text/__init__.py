"""Tokenising, detokenising and chat templates. The heavy libraries load on first use."""


from ostinato.text.detokenize import StreamDecoder
from ostinato.text.tokenizer import Tokenizer

__all__ = ["StreamDecoder", "Tokenizer"]
