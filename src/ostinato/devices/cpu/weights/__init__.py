"""Packed forms of weights, a family of encodings a file, and the tables that find them.

| source | packed as | |
| --- | --- | --- |
| Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4 | themselves | activations in int8 |
| F16, F32 | themselves | activations stay f32 |
| BF16 | itself, two k side by side | they stay f32, or go to bfloat16 where the set multiplies it |
| every other encoding with a codec | F32 | decoded once: exact, and several times the bytes |
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ostinato.devices.cpu.weights.iq4_nl import IQ4_NLForm
from ostinato.devices.cpu.weights.iq4_xs import IQ4_XSForm
from ostinato.devices.cpu.weights.mxfp4 import MXFP4Form
from ostinato.devices.cpu.weights.packed import GROUP, PackedForm, groups
from ostinato.devices.cpu.weights.plain import BF16Form, F16Form, F32Form
from ostinato.devices.cpu.weights.q2_k import Q2_KForm
from ostinato.devices.cpu.weights.q3_k import Q3_KForm
from ostinato.devices.cpu.weights.q4_0 import Q4_0Form
from ostinato.devices.cpu.weights.q4_1 import Q4_1Form
from ostinato.devices.cpu.weights.q4_k import Q4_KForm
from ostinato.devices.cpu.weights.q5_0 import Q5_0Form
from ostinato.devices.cpu.weights.q5_1 import Q5_1Form
from ostinato.devices.cpu.weights.q5_k import Q5_KForm
from ostinato.devices.cpu.weights.q6_k import Q6_KForm
from ostinato.devices.cpu.weights.q8_0 import Q8_0Form
from ostinato.formats.encodings import CODECS
from ostinato.ir import encoding as e
from ostinato.ir.encoding import Encoding

__all__ = ["FORMS", "GROUP", "PACKED", "SOURCES", "STORED", "PackedForm", "groups"]

_OWN: tuple[PackedForm, ...] = (
    Q4_0Form(e.Q4_0),
    Q4_1Form(e.Q4_1),
    Q5_0Form(e.Q5_0),
    Q5_1Form(e.Q5_1),
    Q8_0Form(e.Q8_0),
    IQ4_NLForm(e.IQ4_NL),
    MXFP4Form(e.MXFP4),
    Q2_KForm(e.Q2_K),
    Q3_KForm(e.Q3_K),
    Q4_KForm(e.Q4_K),
    Q5_KForm(e.Q5_K),
    Q6_KForm(e.Q6_K),
    IQ4_XSForm(e.IQ4_XS),
    F16Form(e.F16),
    BF16Form(e.BF16),
    F32Form(e.F32),
)

FORMS: Mapping[str, PackedForm] = MappingProxyType({form.name: form for form in _OWN})
"""By the name of the form."""
STORED: Mapping[Encoding, PackedForm] = MappingProxyType({form.stored: form for form in _OWN})
"""By the encoding of the packed bytes."""
PACKED: Mapping[Encoding, PackedForm] = MappingProxyType(
    {encoding: F32Form(encoding) for encoding in CODECS} | {form.source: form for form in _OWN}
)
"""By the encoding of the weight as it comes from the file."""
SOURCES: Mapping[str, PackedForm] = MappingProxyType(
    {encoding.name: form for encoding, form in PACKED.items()}
)
"""The same, by the encoding's name."""
