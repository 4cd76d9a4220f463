"""The built-in families: an immutable table."""

from __future__ import annotations

from ostinato.models.contract import Family
from ostinato.models.llama import LLAMA
from ostinato.models.phi import PHI

FAMILIES: tuple[Family, ...] = (LLAMA, PHI)
