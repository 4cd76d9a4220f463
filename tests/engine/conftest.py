"""Tiny models ready to answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.engine.llm import LLM


@pytest.fixture(scope="session")
def llm() -> LLM:
    """Its tokens are bytes and its context has 64 positions."""
    return LLM(Path(__file__).parent.parent / "fixtures" / "tiny-llama-grouped.gguf")


@pytest.fixture(scope="session")
def endless() -> LLM:
    """Greedily, it never ends by itself."""
    return LLM(Path(__file__).parent.parent / "fixtures" / "tiny-llama-tied.gguf")
