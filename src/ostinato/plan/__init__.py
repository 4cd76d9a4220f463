"""From a graph to an immutable plan: small passes over one draft, a file each."""

from __future__ import annotations
