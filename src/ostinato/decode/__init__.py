"""Stepping a model over a KV cache."""

from __future__ import annotations
