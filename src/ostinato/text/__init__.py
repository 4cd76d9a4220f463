"""Tokenising, detokenising and chat templates. The heavy libraries load on first use."""

from ostinato.text.chat import ChatTemplate, RenderedChat, encode_chat
from ostinato.text.detokenize import StreamDecoder
from ostinato.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "RenderedChat", "StreamDecoder", "Tokenizer", "encode_chat"]
