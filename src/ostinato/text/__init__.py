"""Tokenising, detokenising and chat templates. The heavy libraries load on first use."""

from ostinato.text.chat import ChatTemplate, RenderedChat, encode_chat
from ostinato.text.detokenize import StreamDecoder
from ostinato.text.huggingface.template import TemplateSource, template_source
from ostinato.text.huggingface.to_gguf import to_gguf_metadata
from ostinato.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "RenderedChat",
    "StreamDecoder",
    "TemplateSource",
    "Tokenizer",
    "encode_chat",
    "template_source",
    "to_gguf_metadata",
]
