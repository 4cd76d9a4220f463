"""What tests of text read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_path: Path) -> dict[str, Any]:
    """The real model's `tokenizer.…` metadata, as the `gguf` package reads it."""
    gguf = pytest.importorskip("gguf")
    fields = gguf.GGUFReader(smollm2_path).fields
    return {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.")}
