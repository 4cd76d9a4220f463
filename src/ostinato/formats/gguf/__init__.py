"""GGUF files, read-only and memory-mapped.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from ostinato.formats.gguf.directory import GgufTensor
from ostinato.formats.gguf.file import GgufFile
from ostinato.formats.gguf.metadata import Metadata, MetadataValue

__all__ = ["GgufFile", "GgufTensor", "Metadata", "MetadataValue"]
