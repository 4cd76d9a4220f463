"""Block codecs, one a file, and the table that finds them.

`codec_for(encoding)` answers None where there is none; `codec(encoding, tensor=..., file=...)` raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ostinato.errors.formats import UnsupportedEncoding
from ostinato.formats.encodings.codec import Codec
from ostinato.formats.encodings.plain import Bf16Codec, F16Codec, F32Codec
from ostinato.formats.encodings.q4_0 import Q4_0Codec
from ostinato.formats.encodings.q4_1 import Q4_1Codec
from ostinato.formats.encodings.q8_0 import Q8_0Codec
from ostinato.ir.encoding import Encoding

__all__ = ["CODECS", "Codec", "codec", "codec_for"]

_ALL: tuple[Codec, ...] = (F32Codec(), F16Codec(), Bf16Codec(), Q8_0Codec(), Q4_0Codec(), Q4_1Codec())
CODECS: Mapping[Encoding, Codec] = MappingProxyType({each.encoding: each for each in _ALL})


def codec_for(encoding: Encoding) -> Codec | None:
    """The codec of `encoding`, or None when its tensors cannot be decoded."""
    return CODECS.get(encoding)


def codec(encoding: Encoding, *, tensor: str, file: str) -> Codec:
    """The codec of `encoding`; raises `UnsupportedEncoding` naming the tensor that needs it."""
    found = codec_for(encoding)
    if found is None:
        raise UnsupportedEncoding(file, tensor, encoding.name)
    return found
