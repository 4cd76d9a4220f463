"""Where the committed fixtures are, and which tiny Llamas are among them."""

from __future__ import annotations

from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"
TINY_LLAMAS = ("grouped", "tied", "llama3", "linear", "window", "bias")
