"""From logits to tokens."""

from __future__ import annotations
