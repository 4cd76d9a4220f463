"""The built-in families: an immutable table."""

from __future__ import annotations

from types import MappingProxyType

from ostinato.models.contract import Family
from ostinato.models.llama import LLAMA
from ostinato.models.phi import PHI

FAMILIES: tuple[Family, ...] = (LLAMA, PHI)

BY_GGUF_ARCHITECTURE = MappingProxyType(
    {architecture: family for family in FAMILIES for architecture in family.gguf_architectures}
)
BY_HF_ARCHITECTURE = MappingProxyType(
    {architecture: family for family in FAMILIES for architecture in family.hf_architectures}
)
