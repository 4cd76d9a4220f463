"""A package index in a folder, with small wheels that stand for models: nothing here needs a network."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

import ostinato.host.version
from ostinato.hub import aliases
from ostinato.hub.aliases import Alias

SRC = Path(ostinato.host.version.__file__).parents[2]
CONTENT = b"GGUF" + bytes(range(256)) * 4096  # 1 MB

CHILD = """
import json, sys
from types import MappingProxyType
from ostinato.hub import aliases, reference
alias = aliases.Alias(**json.loads(sys.argv[1]))
aliases.ALIASES = MappingProxyType({alias.name: alias})
exec(sys.argv[2])
print(reference.resolve(alias.name).source, flush=True)
"""


@dataclass(frozen=True)
class Index:
    """A folder that pip takes for all the packages there are."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def publish(
        self,
        name: str = "tiny",
        content: bytes = CONTENT,
        *,
        shipped: bytes | None = None,
        has_file: bool = True,
    ) -> Alias:
        """Makes `name` an alias of `content`, in a wheel that may ship something else instead."""
        alias = Alias(
            name=name,
            description="a made-up model",
            sha256=hashlib.sha256(content).hexdigest(),
            size=len(content),
            package=f"made-up-{name}",
            version="1.0",
            member=f"made_up_{name}/{name}.Q4_1.gguf",
            wheel_size=len(content),
            licence="Apache-2.0",
            licence_source="",
        )
        info = f"made_up_{name}-1.0.dist-info"
        self.folder.mkdir(exist_ok=True)
        with zipfile.ZipFile(self.wheel(alias), "w", zipfile.ZIP_DEFLATED) as wheel:
            # A dependency that no index has: whoever asks for it fails.
            wheel.writestr(
                f"{info}/METADATA",
                f"Metadata-Version: 2.1\nName: {alias.package}\nVersion: 1.0\n"
                "Requires-Dist: does-not-exist\n",
            )
            wheel.writestr(
                f"{info}/WHEEL",
                "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            wheel.writestr(f"{info}/RECORD", "")
            if has_file:
                wheel.writestr(alias.member, content if shipped is None else shipped)
        self.monkeypatch.setattr(aliases, "ALIASES", MappingProxyType({**aliases.ALIASES, name: alias}))
        return alias

    def wheel(self, alias: Alias) -> Path:
        return self.folder / f"made_up_{alias.name}-1.0-py3-none-any.whl"


# A uv that unpacks the one wheel it knows, or fails while quoting its index.
UV = """#!{python}
import os, sys, zipfile
args = sys.argv[1:]
with open({log!r}, "a") as log:
    print(*args, file=log)
if {fails!r}:
    sys.exit("  x No solution found:\\n      made-up-tiny was not found at https://bob:hunter2@host/simple\\n")
with zipfile.ZipFile({wheel!r}) as wheel:
    wheel.extractall(args[args.index("--target") + 1])
"""
