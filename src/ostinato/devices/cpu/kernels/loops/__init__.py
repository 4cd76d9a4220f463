"""Loop nests over strided views: one primitive a kernel, for whatever has no kernel of its own."""

from __future__ import annotations
