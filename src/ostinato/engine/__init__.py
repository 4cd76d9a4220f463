"""The engine: models ready to answer, conversations, and the one token loop."""

from __future__ import annotations
