"""Block codecs, one a file, and the tables that find them.

`codec_for(encoding)` answers None where there is none; `codec(encoding, tensor=..., file=...)` raises.
`encoder_for` and `encoder` are the same for the codecs that also encode.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ostinato.errors.formats import NoEncoder, UnsupportedEncoding
from ostinato.formats.encodings.codec import Codec
from ostinato.formats.encodings.encoder import Encoder
from ostinato.formats.encodings.iq1_m import IQ1_MCodec
from ostinato.formats.encodings.iq1_s import IQ1_SCodec
from ostinato.formats.encodings.iq2_s import IQ2_SCodec
from ostinato.formats.encodings.iq2_xs import IQ2_XSCodec
from ostinato.formats.encodings.iq2_xxs import IQ2_XXSCodec
from ostinato.formats.encodings.iq3_s import IQ3_SCodec
from ostinato.formats.encodings.iq3_xxs import IQ3_XXSCodec
from ostinato.formats.encodings.iq4_nl import IQ4_NLCodec
from ostinato.formats.encodings.iq4_xs import IQ4_XSCodec
from ostinato.formats.encodings.mxfp4 import MXFP4Codec
from ostinato.formats.encodings.nvfp4 import NVFP4Codec
from ostinato.formats.encodings.plain import Bf16Codec, F16Codec, F32Codec
from ostinato.formats.encodings.q2_k import Q2_KCodec
from ostinato.formats.encodings.q3_k import Q3_KCodec
from ostinato.formats.encodings.q4_0 import Q4_0Codec
from ostinato.formats.encodings.q4_1 import Q4_1Codec
from ostinato.formats.encodings.q4_k import Q4_KCodec
from ostinato.formats.encodings.q5_0 import Q5_0Codec
from ostinato.formats.encodings.q5_1 import Q5_1Codec
from ostinato.formats.encodings.q5_k import Q5_KCodec
from ostinato.formats.encodings.q6_k import Q6_KCodec
from ostinato.formats.encodings.q8_0 import Q8_0Codec
from ostinato.formats.encodings.tq1_0 import TQ1_0Codec
from ostinato.formats.encodings.tq2_0 import TQ2_0Codec
from ostinato.ir.encoding import Encoding

__all__ = ["CODECS", "ENCODERS", "Codec", "Encoder", "codec", "codec_for", "encoder", "encoder_for"]

_ENCODE: tuple[Encoder, ...] = (
    F32Codec(),
    F16Codec(),
    Bf16Codec(),
    Q8_0Codec(),
    Q4_0Codec(),
    Q4_1Codec(),
)
_DECODE: tuple[Codec, ...] = (
    Q5_0Codec(),
    Q5_1Codec(),
    Q2_KCodec(),
    Q3_KCodec(),
    Q4_KCodec(),
    Q5_KCodec(),
    Q6_KCodec(),
    IQ1_SCodec(),
    IQ1_MCodec(),
    IQ2_XXSCodec(),
    IQ2_XSCodec(),
    IQ2_SCodec(),
    IQ3_XXSCodec(),
    IQ3_SCodec(),
    IQ4_NLCodec(),
    IQ4_XSCodec(),
    TQ1_0Codec(),
    TQ2_0Codec(),
    MXFP4Codec(),
    NVFP4Codec(),
)
CODECS: Mapping[Encoding, Codec] = MappingProxyType({each.encoding: each for each in (*_ENCODE, *_DECODE)})
ENCODERS: Mapping[Encoding, Encoder] = MappingProxyType({each.encoding: each for each in _ENCODE})


def codec_for(encoding: Encoding) -> Codec | None:
    """The codec of `encoding`, or None when its tensors cannot be decoded."""
    return CODECS.get(encoding)


def codec(encoding: Encoding, *, tensor: str, file: str) -> Codec:
    """The codec of `encoding`; raises `UnsupportedEncoding` naming the tensor that needs it."""
    found = codec_for(encoding)
    if found is None:
        raise UnsupportedEncoding(file, tensor, encoding.name)
    return found


def encoder_for(encoding: Encoding) -> Encoder | None:
    """The encoder of `encoding`, or None when nothing can be encoded to it."""
    return ENCODERS.get(encoding)


def encoder(encoding: Encoding, *, tensor: str, file: str) -> Encoder:
    """The encoder of `encoding`; raises `NoEncoder` naming the tensor that was to be encoded."""
    found = encoder_for(encoding)
    if found is None:
        raise NoEncoder(file, tensor, encoding.name)
    return found
