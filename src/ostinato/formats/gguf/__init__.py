"""GGUF files: read by mapping them, and written.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from ostinato.formats.gguf.directory import GgufTensor
from ostinato.formats.gguf.file import GgufFile
from ostinato.formats.gguf.metadata import Metadata, MetadataValue
from ostinato.formats.gguf.writer import TensorData, TensorSource, write_gguf

__all__ = [
    "GgufFile",
    "GgufTensor",
    "Metadata",
    "MetadataValue",
    "TensorData",
    "TensorSource",
    "write_gguf",
]
